"""Lists of different lengths, one a row, as flat columns."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def row_of(rows: Sequence[int], parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """int64 [items of all parts]: `rows[i]` as often as parts[i] is long."""
    return np.repeat(np.array(rows, dtype=np.int64), [len(part) for part in parts])
