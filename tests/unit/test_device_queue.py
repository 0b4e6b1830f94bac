"""Tensors travel as one piece of bytes, whatever their strides."""

import pytest
import torch

from worker.execution.device.queue import joined, parted, shapes_of

WIDE = torch.arange(60, dtype=torch.float32).view(5, 12)


@pytest.mark.parametrize(
    "tensor",
    [WIDE, WIDE.T, WIDE[:, 3:5], WIDE[2:3, 1:2], WIDE[1:2, ::2][:, :1], WIDE[:0], WIDE[0, 7], WIDE > 7],
    ids=["dense", "turned", "a part", "one value", "one value of stride 2", "none", "a number", "bool"],
)
def test_what_was_joined_comes_apart_again(tensor: torch.Tensor) -> None:
    sent = [torch.tensor([7, 8]), tensor, torch.tensor([True])]
    found = parted(joined(sent), shapes_of(sent))
    assert [torch.from_numpy(one).tolist() for one in found] == [one.tolist() for one in sent]
