"""Random inputs, equal whenever they are asked for."""

import torch

from kernels.gpu.launch import Launcher


def drawn(launch: Launcher, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal values, drawn on the device: large ones must fit beside nothing."""
    draw = torch.Generator(launch.device).manual_seed(sum(shape))
    return torch.empty(*shape, device=launch.device, dtype=dtype).normal_(generator=draw)
