"""y = x W^T + b, with W packed once at load."""

from kernels.linear.packed import PackedLinear, pack

__all__ = ["PackedLinear", "pack"]
