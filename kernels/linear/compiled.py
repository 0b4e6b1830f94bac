"""Projections and MLPs by way of torch.compile: the library's products, or kernels that it makes for them, with the activation between two
of them joined on. It looks into nothing else: between products a step is kernels of our own.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.errors import NoBackend
from kernels.weights import Activation

_FEW = 64  # rows up to which one kernel is picked, and beyond which another one
_MOST = 64  # kinds of weights times kinds of rows of a model; beyond it torch gives up
_TWICE_ROOT = 1.5957691216057308  # 2 sqrt(2 / pi)

Tensor = torch.Tensor
_Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_Mlp = Callable[[Tensor, tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None], bool], Tensor]


class CannotCompile(NoBackend):
    """torch.compile does not run here. The message says why."""


class Compiled:
    """What a backend calls for products whose rows may sum in any order. Each new shape of a weight compiles once for one row, for few and
    for many rows, at its first step; on a GPU several kernels are timed for it then.
    """

    def __init__(self, device: torch.device, maker: str = "inductor"):
        """`maker` is torch.compile's backend. CannotCompile where a small product shows that it cannot be had."""
        torch._dynamo.config.recompile_limit = max(_MOST, torch._dynamo.config.recompile_limit)
        mode = "max-autotune-no-cudagraphs" if device.type == "cuda" else None
        self._linear: _Linear = torch.compile(_linear, backend=maker, mode=mode, dynamic=True, fullgraph=True)
        self._mlp: _Mlp = torch.compile(_mlp, backend=maker, mode=mode, dynamic=True, fullgraph=True)
        self._try(device)

    def fixed(self, weight: Tensor) -> Tensor:
        """The weight as torch.compile takes it for something that never changes its shape."""
        return torch.nn.Parameter(weight, requires_grad=False)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [rows, k] -> [rows, n] of the same dtype."""
        return self._linear(x, weight, bias) if len(x) else x.new_empty(0, len(weight))

    def mlp(
        self,
        x: Tensor,
        gate_up: tuple[Tensor, Tensor | None],
        down: tuple[Tensor, Tensor | None],
        activation: Activation,
    ) -> Tensor:
        """x [rows, k] through both weights, each with its bias; the activation runs in float32."""
        return self._mlp(x, gate_up, down, activation == "gelu_tanh") if len(x) else x.new_empty(0, len(down[0]))

    @torch.inference_mode()
    def _try(self, device: torch.device) -> None:
        x, weight = torch.ones(2, 16, device=device), self.fixed(torch.ones(16, 16, device=device))
        pairs = (self.fixed(torch.ones(32, 16, device=device)), None), (weight, None)
        try:
            # What an earlier process left in the caches would hide that nothing can be compiled any more.
            with torch._inductor.config.patch(force_disable_caches=True):
                found = self.linear(x, weight, None)
                inner = self.mlp(x, *pairs, "silu")  # for a product alone a CPU compiles nothing
        except Exception as error:
            raise CannotCompile(f"torch.compile cannot be used: {_first_line(error)}") from error
        if not torch.equal(found.cpu(), torch.full((2, 16), 16.0)) or not torch.allclose(inner, _mlp(x, *pairs, False)):
            raise CannotCompile("torch.compile gives wrong products here")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(x) <= _FEW:  # a guard on the number of rows: two compilations
        return F.linear(x, weight, bias)
    return F.linear(x, weight, bias)


def _mlp(
    x: Tensor, gate_up: tuple[Tensor, Tensor | None], down: tuple[Tensor, Tensor | None], gelu: bool
) -> Tensor:  # fmt: skip
    gate, up = _linear(x, *gate_up).float().chunk(2, dim=-1)
    below = _TWICE_ROOT * gate * (1.0 + 0.044715 * gate * gate) if gelu else gate
    return _linear((gate * torch.sigmoid(below) * up).to(x.dtype), *down)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
