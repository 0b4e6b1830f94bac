"""Ours, theirs, ours, theirs: rounds of two sides in turns, the machine's probe between, and the medians of paired ratios."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.peers.processes import ProgramFailed
from octavo.bench.peers.programs import Figures

Take = Callable[[], Figures]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One round of two sides, with the machine's probe before each and after both."""

    ours: Figures
    theirs: Figures
    machine: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """All rounds against one peer. `failed` says what ended it, if anything did; the rounds before that count."""

    peer: str
    pairs: tuple[Pair, ...]
    failed: str = ""


def contest(peer: str, ours: Take, theirs: Take, machine: Take, rounds: int) -> Contest:
    """Takes the rounds. What fails is told in the contest, and ends it."""
    turns = (("probe", machine), ("octavo", ours), ("probe", machine), (peer, theirs), ("probe", machine))
    pairs: list[Pair] = []
    for _ in range(rounds):
        got: list[Figures] = []
        for name, take in turns:
            try:
                got.append(take())
            except ProgramFailed as failure:
                return Contest(peer=peer, pairs=tuple(pairs), failed=f"{name}: {failure}")
        pairs.append(Pair(ours=got[1], theirs=got[3], machine=(got[0], got[2], got[4])))
    return Contest(peer=peer, pairs=tuple(pairs))


def compared(pairs: Sequence[Pair], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each figure that both sides have: their medians, and the median, least and largest of the ratios ours / theirs of a round."""
    found = {}
    for name in names:
        both = [(pair.ours.get(name), pair.theirs.get(name)) for pair in pairs]
        values = [(mine, other) for mine, other in both if mine and other]
        if values:
            found[name] = _row(values)
    return found


def _row(values: Sequence[tuple[float, float]]) -> dict[str, float]:
    ratios = [mine / other for mine, other in values]
    return {
        "ours": statistics.median(mine for mine, _ in values),
        "theirs": statistics.median(other for _, other in values),
        "ratio": round(statistics.median(ratios), 4),
        "least_ratio": round(min(ratios), 4),
        "largest_ratio": round(max(ratios), 4),
    }


def told(it: Contest, names: Sequence[str]) -> dict[str, Any]:
    """For the report."""
    rounds = [{"ours": pair.ours, "theirs": pair.theirs, "machine": list(pair.machine)} for pair in it.pairs]
    return {"peer": it.peer, "failed": it.failed, "compared": compared(it.pairs, names), "rounds": rounds}
