"""The ops of the Triton backend. Contracts are the references'; the residual stream is changed in place.

Weights that are not packed (norms, tables) are sent to the device when they are first used, and kept as long as this.
Queries, attention's output and products are in the weights' dtype, the residual stream and logits in float32.
"""

from dataclasses import replace
from typing import TypeVar

import torch

from kernels.attention.spec import AttentionSpec
from kernels.attention.triton import attention
from kernels.attn_in.triton import turn_and_write
from kernels.embed.triton import embed
from kernels.gpu.adapters import EMBED, HEAD, GpuSlots
from kernels.gpu.launch import Launcher
from kernels.gpu.step import GpuStep, device_step, host_step
from kernels.kv.triton import GpuKVPool
from kernels.linear.compiled import Compiled
from kernels.linear.triton import GpuLinear, linear, linear_float32, pack
from kernels.logits.triton import softcap_
from kernels.lora.triton import apply, apply_embedding, jobs_there
from kernels.lora.weights import LoraShapes
from kernels.mlp.triton import gated
from kernels.prepare.reference import Batch
from kernels.prepare.staged import Staged
from kernels.rms_norm.triton import add, add_rms_norm, rms_norm
from kernels.rotary.table import RotaryTable
from kernels.sample.reference import Draw
from kernels.sample.triton import finite, greedy, sample
from kernels.weights import AttnIn, AttnOut, Embedding, Head, HeadNorm, Layer, Mlp, Norm

Tensor = torch.Tensor
_Weights = TypeVar("_Weights")


class TritonOps:
    """One GPU's ops. `fixed`: attention's splits and tiles do not depend on the step. `compiled` makes the products and MLPs whose sums are
    free.
    """

    def __init__(self, launch: Launcher, *, fixed: bool, compiled: Compiled | None = None):
        self.launch = launch
        self.fixed = fixed
        self._compiled = compiled
        self._placed: dict[int, tuple[object, object]] = {}  # by identity: the weights given, those on the device

    def pack(
        self, weight: Tensor, quantisation: str | None = None, bias: Tensor | None = None, *, invariant: bool = True
    ) -> GpuLinear:
        """See kernels.linear.pack."""
        invariant = invariant and self.fixed
        compiled = None if invariant else self._compiled
        return pack(self.launch, weight, quantisation, bias, invariant=invariant, compiled=compiled)

    def kv_pool(self, *, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype) -> GpuKVPool:
        """A pool of `blocks` blocks."""
        return GpuKVPool.allocate(
            layers=layers, kv_heads=kv_heads, head_dim=head_dim, blocks=blocks, dtype=dtype, device=self.launch.device
        )

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""
        return self.launch.device

    def prepare(
        self, batch: Batch, pool: GpuKVPool, rotaries: tuple[RotaryTable, ...], specs: tuple[AttentionSpec, ...]
    ) -> GpuStep:
        """Positions must lie inside the rotary tables and inside the block tables."""
        staged = self.stage(batch, pool, rotaries, specs)
        flat = torch.from_numpy(staged.flat)
        if self.launch.device.type == "cuda":
            flat = flat.pin_memory().to(self.launch.device, non_blocking=True)
        step: GpuStep = staged.arrive(flat)
        return step

    def stage(
        self,
        batch: Batch,
        pool: GpuKVPool,
        rotaries: tuple[RotaryTable, ...],
        specs: tuple[AttentionSpec, ...],
        longest: int | None = None,
    ) -> Staged:
        """`prepare` in two parts. `longest`: what the step is cut for, at least its longest chunk's end."""
        host = host_step(self.launch, batch, pool, specs, fixed=self.fixed, longest=longest)
        turns = self.tables(rotaries)
        return Staged(
            flat=host.flat(), arrive=lambda flat: device_step(host, flat, turns, fixed=self.fixed), kind=host.kind
        )

    def tables(self, rotaries: tuple[RotaryTable, ...]) -> tuple[RotaryTable, ...]:
        """The tables on the device."""
        return tuple(self._on_device(rotary) for rotary in rotaries)

    def adapter_slots(self, shapes: LoraShapes, *, slots: int, max_rank: int, dtype: torch.dtype) -> GpuSlots:
        """Slots for adapters of up to `max_rank`."""
        return GpuSlots(shapes, slots=slots, max_rank=max_rank, dtype=dtype, device=self.launch.device)

    def embed(self, tokens: Tensor, weights: Embedding, step: GpuStep | None = None) -> Tensor:
        """tokens int64 [tokens] -> float32 [tokens, hidden]."""
        tokens = tokens.to(self.launch.device)
        out = embed(self.launch, tokens, self._on_device(weights))
        adapted = None if step is None else step.adapters
        if adapted is not None and (stack := adapted.slots.stack(EMBED)) is not None:
            apply_embedding(self.launch, tokens, stack, adapted.step, out, weights.scale)
        return out

    def attn_in(self, x: Tensor, weights: AttnIn, step: GpuStep, pool: GpuKVPool, layer: int) -> Tensor:
        """x float32 [tokens, hidden] -> rotated queries, [tokens, heads, head_dim] in the pool's dtype."""
        weights = self._on_device(weights)
        return self._queries(rms_norm(self.launch, x, weights.norm, weights.qkv.dtype), weights, step, pool, layer)

    def attention(self, q: Tensor, step: GpuStep, pool: GpuKVPool, layer: int, spec: AttentionSpec) -> Tensor:
        """q [tokens, heads, head_dim] in the pool's dtype -> [tokens, heads * head_dim] of the same dtype."""
        return attention(self.launch, q, step.attention, pool, layer, spec, fixed=step.fixed)

    def attn_out(
        self, x: Tensor, attended: Tensor, weights: AttnOut, step: GpuStep | None = None, layer: int = 0
    ) -> Tensor:
        """x float32 [tokens, hidden] + norm(proj(attended)), in place."""
        weights = self._on_device(weights)
        add(self.launch, x, self._linear(attended, weights.proj, step, layer, "o"), weights.after)
        return x

    def mlp(self, x: Tensor, weights: Mlp, step: GpuStep | None = None, layer: int = 0) -> Tensor:
        """x float32 [tokens, hidden], in place."""
        weights = self._on_device(weights)
        normed = rms_norm(self.launch, x, weights.norm, weights.gate_up.dtype)
        add(self.launch, x, self._inner(normed, weights, step, layer), weights.after)
        return x

    def layers(self, x: Tensor, layers: tuple[Layer, ...], step: GpuStep, pool: GpuKVPool) -> Tensor:
        """x float32 [tokens, hidden] through all layers, in place: what attn_in, attention, attn_out and mlp do in turn,
        with each residual addition joined to the norm that follows it.
        """
        normed: Tensor | None = None
        for number, layer in enumerate(layers):
            attn_in, attn_out = self._on_device(layer.attn_in), self._on_device(layer.attn_out)
            mlp = self._on_device(layer.mlp)
            if normed is None:
                normed = rms_norm(self.launch, x, attn_in.norm, attn_in.qkv.dtype)
            q = self._queries(normed, attn_in, step, pool, number)
            attended = self.attention(q, step, pool, number, layer.attention)
            y = self._linear(attended, attn_out.proj, step, number, "o")
            normed = add_rms_norm(self.launch, x, y, attn_out.after, mlp.norm, mlp.gate_up.dtype)
            y = self._inner(normed, mlp, step, number)
            if number + 1 < len(layers):
                following = self._on_device(layers[number + 1].attn_in)
                normed = add_rms_norm(self.launch, x, y, mlp.after, following.norm, following.qkv.dtype)
            else:
                add(self.launch, x, y, mlp.after)
        return x

    def logits(self, x: Tensor, rows: Tensor, weights: Head, step: GpuStep | None = None) -> Tensor:
        """x float32 [tokens, hidden], rows int64 [rows] -> float32 [rows, vocabulary]."""
        weights = self._on_device(weights)
        normed = rms_norm(self.launch, x, weights.norm, weights.proj.dtype, rows.to(x.device))
        out = linear_float32(self.launch, normed, weights.proj)
        adapted = None if step is None else step.adapters
        if adapted is not None and (stack := adapted.slots.stack(HEAD)) is not None:
            own = jobs_there(adapted.slot_of_token.index_select(0, rows.to(x.device)), adapted.slots.slots)
            apply(self.launch, normed, stack, own, out)
        if weights.softcap is not None:
            softcap_(self.launch, out, weights.softcap)
        return out

    def finite(self, logits: Tensor) -> Tensor:
        """logits float32 [rows, vocabulary] -> bool [rows]: whether a row holds neither a NaN nor an infinity."""
        return finite(self.launch, logits)

    def greedy(self, logits: Tensor) -> Tensor:
        """logits float32 [rows, vocabulary] -> int64 [rows]: the most likely token, the lowest of equals."""
        return greedy(self.launch, logits)

    def sample(self, logits: Tensor, draw: Draw) -> Tensor:
        """logits float32 [rows, vocabulary] (finite, or -inf for what is forbidden) -> int64 [rows]."""
        names = ("temperature", "top_k", "top_p", "min_p", "seed_low", "seed_high", "position", "choice")
        sent = replace(draw, **{name: getattr(draw, name).to(logits.device) for name in names})
        return sample(self.launch, logits, sent)

    def _queries(self, normed: Tensor, weights: AttnIn, step: GpuStep, pool: GpuKVPool, layer: int) -> Tensor:
        qkv = self._linear(normed, weights.qkv, step, layer, "qkv")
        return turn_and_write(self.launch, qkv, weights, step.turns[weights.rotary], step.at, pool, layer)

    def _inner(self, normed: Tensor, weights: Mlp, step: GpuStep | None, layer: int) -> Tensor:
        """Everything of an MLP between its norms."""
        gate_up, down = weights.gate_up, weights.down
        if gate_up.compiled is not None and (step is None or step.adapters is None):
            x = normed.to(gate_up.dtype)
            pairs = (gate_up.weight, gate_up.bias), (down.weight, down.bias)
            made: Tensor = gate_up.compiled.mlp(x, *pairs, weights.activation)
            return made
        acted = gated(self.launch, self._linear(normed, weights.gate_up, step, layer, "gate_up"), weights.activation)
        return self._linear(acted, weights.down, step, layer, "down")

    def _linear(self, x: Tensor, w: GpuLinear, step: GpuStep | None, layer: int, group: str) -> Tensor:
        """With what the step's adapters add."""
        x = x.to(w.dtype)
        y = linear(self.launch, x, w)
        adapted = None if step is None else step.adapters
        if adapted is not None and (stack := adapted.slots.stack((layer, group))) is not None:
            apply(self.launch, x, stack, adapted.step, y)
        return y

    def _on_device(self, weights: _Weights) -> _Weights:
        found = self._placed.get(id(weights))
        if found is None:
            found = self._placed[id(weights)] = (weights, _moved(weights, self.launch.device))
        return found[1]  # type: ignore[return-value]


def _moved(value: object, device: torch.device) -> object:
    """The weights with every tensor on the device, norms inside them too."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, AttnIn | AttnOut | Mlp | Head | Embedding | HeadNorm | Norm | RotaryTable):
        fields = {name: _moved(getattr(value, name), device) for name in value.__slots__}
        return replace(value, **fields)  # type: ignore[arg-type]
    return value
