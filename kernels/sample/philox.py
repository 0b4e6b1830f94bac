"""Philox4x32-10 (Salmon et al., SC 2011): random words as a pure function of key and counter, with uint32 kept in
int64 tensors.
"""

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1
_ROUNDS = 10

Words = tuple[torch.Tensor, ...]


def philox4x32(counter: Words, key: Words) -> Words:
    """Four counter words and two key words, each int64 [n] in 0 .. 2^32 - 1, to four random words of the same kind."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(x0, _MULTIPLIERS[0])
        high1, low1 = _multiply(x2, _MULTIPLIERS[1])
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return x0, x1, x2, x3


def uniform(seed: Words, position: torch.Tensor, choice: torch.Tensor, use: int) -> torch.Tensor:
    """float64 [n] in [0, 1): the first word times 2^-32, with key = seed (low word, high word) and counter = (output
    position, choice index, use, 0). `use` is 0 to sample, 1 to accept a speculated token, 2 to sample from a
    residual.
    """
    words = philox4x32((position, choice, torch.full_like(position, use), torch.zeros_like(position)), seed)
    return words[0].double() * 2.0**-32


def _multiply(a: torch.Tensor, constant: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of the 64-bit product, by 16-bit halves so that no int64 overflows."""
    low, high = (a & 0xFFFF) * constant, (a >> 16) * constant
    middle = high + (low >> 16)
    return middle >> 16, ((middle << 16) | (low & 0xFFFF)) & _MASK
