"""kernels.logits.changes.LogitKernels by Triton's kernels."""

import torch

from kernels.gpu.launch import Launcher
from kernels.logits.changes import Seen, Words
from kernels.logits.triton import bias_, blank_, forbid_, forbid_endings_, logprobs, mask_, penalise_

Tensor = torch.Tensor


class TritonLogits:
    """See LogitKernels."""

    def __init__(self, launch: Launcher):
        self._launch = launch

    def blank(self, logits: Tensor, good: Tensor) -> None:
        """See LogitKernels."""
        blank_(self._launch, logits, good)

    def mask(self, logits: Tensor, rows: Tensor, allowed: Tensor, entries: Tensor) -> None:
        """See LogitKernels."""
        mask_(self._launch, logits, rows, allowed, entries)

    def forbid(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
        """See LogitKernels."""
        forbid_(self._launch, logits, rows, tokens)

    def forbid_endings(self, logits: Tensor, words: Words, buffer: Tensor) -> None:
        """See LogitKernels."""
        forbid_endings_(self._launch, logits, words, buffer)

    def add_bias(self, logits: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> None:
        """See LogitKernels."""
        bias_(self._launch, logits, rows, tokens, values)

    def penalise(self, logits: Tensor, rows: Tensor, entries: Tensor, seen: Seen) -> None:
        """See LogitKernels."""
        penalise_(self._launch, logits, rows, entries, seen)

    def ranked(self, logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """See LogitKernels."""
        best = logits.topk(min(most, logits.shape[1])).indices
        found, _ = logprobs(self._launch, logits, torch.cat((tokens[:, None], best), dim=1))
        return found[:, 0], found[:, 1:], best
