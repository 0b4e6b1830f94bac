"""How what the host knows of a step reaches the device that computes it.

A step is *staged* on the host first: whatever a later computation needs is handed to `Send`, which may only gather it. The computation
runs later, perhaps behind steps that have not ended, and asks each `Sent` for its tensor then. So a step can be prepared while the one
before it still runs, and all that it needs can travel in one copy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Sent = Callable[[], torch.Tensor]
Send = Callable[[Array], Sent]


def at_once(array: Array) -> Sent:
    """A `Send` where host and device are one: the tensor shares the array's memory."""
    tensor = torch.from_numpy(array)
    return lambda: tensor


def whole(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Integers, or rows of them, as int64."""
    return np.array(values, dtype=np.int64)
