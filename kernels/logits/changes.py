"""What is done to logits before tokens are drawn, on a device that computes behind the host: one launch each, and no look at a value."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
WORD = 32  # tokens a word of a bitmap


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Seen:
    """What sequences hold so far, an entry each: `counts` int32 [entries, vocabulary] of outputs, `prompts` int32
    [entries, words]: a bit for each token of the prompt, `penalties` float32 [entries, 3]: repetition, presence,
    frequency.
    """

    counts: Tensor
    prompts: Tensor
    penalties: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Words:
    """Pairs of a row and a token that is forbidden where the row's output ends in a certain way: `rows` and `tokens` int64 [pairs],
    `beginnings` int32 [pairs, length]: the ending's tokens, kernels.sample.adjust.ANY before its first. The output of pair i is
    tokens[slots[i], prompts[i] : ends[i]] of the buffer, int64 [pairs] each.
    """

    rows: Tensor
    tokens: Tensor
    beginnings: Tensor
    slots: Tensor
    prompts: Tensor
    ends: Tensor


class LogitKernels(Protocol):
    """`logits` are float32 [rows, vocabulary] and changed in place; `rows` int64 are numbers of its rows."""

    def blank(self, logits: Tensor, good: Tensor) -> None:
        """Zeros in the rows that are not `good` bool [rows]."""

    def mask(self, logits: Tensor, rows: Tensor, allowed: Tensor, entries: Tensor) -> None:
        """Forbid in each of the distinct `rows` [n] what has no bit in its entry (`entries` int64 [n]) of `allowed` int32
        [entries, words].
        """

    def forbid(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
        """Forbid the pairs [pairs]."""

    def forbid_endings(self, logits: Tensor, words: Words, buffer: Tensor) -> None:
        """Forbid the pairs whose outputs in `buffer` int64 [slots, positions] end as they must."""

    def add_bias(self, logits: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> None:
        """Add `values` float32 [pairs] to the pairs, which are distinct."""

    def penalise(self, logits: Tensor, rows: Tensor, entries: Tensor, seen: Seen) -> None:
        """kernels.sample.adjust.penalise of the distinct `rows` [n] by their entries of `seen`."""

    def ranked(self, logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of `tokens` int64 [rows], float32 [rows]; those of each row's `most` most likely tokens, and these, int64."""


def words(vocabulary: int) -> int:
    """Words of a bitmap over the vocabulary: token t is bit t % 32 of word t / 32."""
    return -(-vocabulary // WORD)


def bitmap(tokens: npt.NDArray[np.int64], vocabulary: int) -> npt.NDArray[np.int32]:
    """int32 [words]: the bits of `tokens`, all below `vocabulary`."""
    flags = np.zeros(words(vocabulary) * WORD, dtype=np.uint8)
    flags[tokens] = 1
    return np.packbits(flags, bitorder="little").view(np.dtype("<i4")).astype(np.int32, copy=False)
