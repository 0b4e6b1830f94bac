"""Covering arrays: few cases in which every value of every factor meets every value of every other one."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

_Pair = tuple[int, int, int, int]  # a factor, its value's number, another factor, its value's number


def covering(factors: Mapping[str, Sequence[Any]]) -> list[pytest.param]:
    """The cases as pytest parameters, for `@pytest.mark.parametrize(",".join(factors), covering(factors))`."""
    values = list(factors.values())
    cases = [
        [column[i] for column, i in zip(values, row, strict=True)] for row in rows([len(column) for column in values])
    ]
    return [pytest.param(*case, id="-".join(map(_name, case))) for case in cases]


def rows(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of value numbers. Greedy: each begins with a pair that is not covered yet, then takes, factor by factor, the
    value that covers most of what is left.
    """
    left = {
        (a, i, b, j)
        for a, b in combinations(range(len(sizes)), 2)
        for i, j in product(range(sizes[a]), range(sizes[b]))
    }
    found = []
    while left:
        a, i, b, j = min(left)
        row: dict[int, int] = {a: i, b: j}
        for factor in sorted(set(range(len(sizes))) - set(row), key=lambda f: -sizes[f]):
            row[factor] = max(range(sizes[factor]), key=lambda v, f=factor: (len(_pairs({**row, f: v}) & left), -v))
        left -= _pairs(row)
        found.append(tuple(row[factor] for factor in range(len(sizes))))
    return found


def _pairs(row: Mapping[int, int]) -> set[_Pair]:
    return {(a, row[a], b, row[b]) for a, b in combinations(sorted(row), 2)}


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")
