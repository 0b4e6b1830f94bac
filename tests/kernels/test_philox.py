"""Philox4x32-10 against the vectors that its authors publish with Random123 (kat_vectors), and against plain integers."""

import pytest
import torch

from kernels.sample.philox import philox4x32, uniform

ONES = 0xFFFFFFFF
PUBLISHED = [  # counter, key, output
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def plain(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The same function on Python's integers."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q >> 32 ^ b ^ k0, q & ONES, p >> 32 ^ d ^ k1, p & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return a, b, c, d


def columns(values: list[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(column, dtype=torch.int64) for column in zip(*values, strict=True))


@pytest.mark.parametrize(("counter", "key", "output"), PUBLISHED)
def test_published_vectors_come_out(counter, key, output) -> None:
    assert tuple(int(word) for word in philox4x32(columns([counter]), columns([key]))) == output


def test_a_batch_equals_plain_integers() -> None:
    words = torch.randint(0, 1 << 32, (500, 6), generator=torch.Generator().manual_seed(1)).tolist()
    got = torch.stack(philox4x32(columns([tuple(w[:4]) for w in words]), columns([tuple(w[4:]) for w in words])), 1)
    assert got.tolist() == [list(plain(tuple(w[:4]), (w[4], w[5]))) for w in words]


def test_uniforms_are_the_first_word_over_two_to_the_32() -> None:
    seed, position, choice = (5, ONES), 17, 3
    got = uniform(columns([seed]), torch.tensor([position]), torch.tensor([choice]), 2)
    assert got.dtype == torch.float64
    assert got.item() == plain((position, choice, 2, 0), seed)[0] / 2**32


def test_uniforms_stay_below_one() -> None:
    assert ONES * 2.0**-32 < 1.0
    position = torch.arange(20_000)
    drawn = uniform(columns([(1, 2)]), position, torch.zeros_like(position), 0)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean().item() - 0.5) < 4 * (1 / 12 / 20_000) ** 0.5
