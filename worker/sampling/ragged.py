"""Lists of different lengths, one a row, as flat columns."""

from collections.abc import Sequence

import torch


def row_of(rows: Sequence[int], parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """int64 [items of all parts]: `rows[i]` as often as parts[i] is long."""
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    return torch.tensor(rows, dtype=torch.int64).repeat_interleave(lengths)
