"""A model's weights, a KV cache and steps, as the ops of one backend take them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernels.backend import Backend, Pool, Prepared
from kernels.kv import BLOCK
from kernels.prepare.reference import Batch
from kernels.rotary.table import RotaryTable, rotary_table
from kernels.weights import Embedding, Head, Layer
from worker.models.checkpoint import Checkpoint
from worker.models.decoder import load
from worker.models.spec import DecoderSpec

_FILL = 512  # tokens whose KV is written at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """What the ops are called with, packed by the backend."""

    spec: DecoderSpec
    embedding: Embedding
    layers: tuple[Layer, ...]
    head: Head


def weights_of(checkpoint: Checkpoint, dtype: torch.dtype, ops: Backend) -> Weights:
    """Loads the model as the worker does, and notes what its forward pass gives to the ops."""
    seen: dict[str, Any] = {}

    def embed(tokens: torch.Tensor, weights: Embedding, _step: Prepared) -> torch.Tensor:
        seen["embedding"] = weights
        return tokens

    def layers(x: torch.Tensor, weights: tuple[Layer, ...], _step: Prepared, _pool: Pool) -> torch.Tensor:
        seen["layers"] = weights
        return x

    def logits(x: torch.Tensor, _rows: torch.Tensor, weights: Head, _step: Prepared) -> torch.Tensor:
        seen["head"] = weights
        return x

    noting = replace(ops, embed=embed, layers=layers, logits=logits)
    model, nothing = load(checkpoint, dtype, noting, invariant=True), torch.zeros(1, dtype=torch.int64)
    model.logits(model.forward(nothing, None, None), nothing)
    return Weights(spec=model.spec, **seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Chunks of equal length of `sequences` sequences, from position `start` on; no two sequences share a block."""

    sequences: int
    start: int
    length: int

    @property
    def tokens(self) -> int:
        """That it computes."""
        return self.sequences * self.length

    @property
    def width(self) -> int:
        """Blocks of a sequence."""
        return -(-(self.start + self.length) // BLOCK)

    @property
    def looks(self) -> int:
        """Pairs of a query and a position that it sees, over all sequences, where no window hides any."""
        return self.sequences * (self.length * self.start + self.length * (self.length + 1) // 2)

    def batch(self, first: int) -> Batch:
        """As `prepare` takes it, with blocks from `first` on."""
        tables = torch.arange(first, first + self.sequences * self.width).view(self.sequences, self.width)
        return Batch(
            starts=np.full(self.sequences, self.start, dtype=np.int64),
            lengths=np.full(self.sequences, self.length, dtype=np.int64),
            tables=tables,
        )


class Rig:
    """One backend with the weights, and KV of a text of random tokens behind every step of `steps`.

    `streams` are what the layers get of this text, [positions, hidden] each. With those `of` another rig both hold KV of the same
    inputs: what differs then is what an op did, and not what thirty layers made of one rounding.
    """

    def __init__(
        self,
        ops: Backend,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        steps: Sequence[Step],
        *,
        of: "Rig | None" = None,
    ):
        self.ops = ops
        self.dtype = dtype
        self.weights = weights_of(checkpoint, dtype, ops)
        spec = self.weights.spec
        length = max(step.start + step.length for step in steps)
        if length > spec.max_positions:
            raise ValueError(f"the model has {spec.max_positions} positions, and a step looks at {length}")
        whole = -(-length // BLOCK) * BLOCK
        self.rotaries: tuple[RotaryTable, ...] = tuple(rotary_table(one, whole, length) for one in spec.rotaries)
        self.pool: Pool = ops.kv_pool(
            layers=spec.layers,
            kv_heads=spec.attention[0].kv_heads,
            head_dim=spec.attention[0].head_dim,
            blocks=whole // BLOCK + sum(step.sequences * step.width for step in steps),
            dtype=dtype,
        )
        self.streams: tuple[torch.Tensor, ...] = self._written(whole) if of is None else self._copied(of.streams)
        self._first: dict[Step, int] = {}
        self._copy(steps, whole // BLOCK)

    def prepared(self, step: Step) -> Prepared:
        """The step's preparation; KV of its sequences lies where it looks."""
        return self.ops.prepare(step.batch(self._first[step]), self.pool, self.rotaries, self.weights.spec.attentions)

    def _written(self, length: int) -> tuple[torch.Tensor, ...]:
        """Writes KV of the text into the first blocks, all of which it fills; what the layers got."""
        draw = torch.Generator().manual_seed(5)
        tokens = torch.randint(self.weights.spec.vocab_size, (length,), generator=draw)
        parts = [
            self._through(self.ops.embed(tokens[start : start + _FILL], self.weights.embedding), start)
            for start in range(0, length, _FILL)
        ]
        return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))

    def _through(self, x: torch.Tensor, start: int) -> list[torch.Tensor]:
        ops, step, seen = self.ops, self._filling(start, x.shape[0]), []
        for number, layer in enumerate(self.weights.layers):
            seen.append(x.clone())
            q = ops.attn_in(x, layer.attn_in, step, self.pool, number)
            x = ops.attn_out(x, ops.attention(q, step, self.pool, number, layer.attention), layer.attn_out)
            x = ops.mlp(x, layer.mlp)
        return seen

    def _copied(self, streams: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Writes KV of another rig's streams."""
        for start in range(0, streams[0].shape[0], _FILL):
            parts = [stream[start : start + _FILL].clone() for stream in streams]
            step = self._filling(start, parts[0].shape[0])
            for number, layer in enumerate(self.weights.layers):
                self.ops.attn_in(parts[number], layer.attn_in, step, self.pool, number)
        return streams

    def _copy(self, steps: Sequence[Step], first: int) -> None:
        """The same behind every sequence of every step: what one step writes, no other one sees."""
        for step in steps:
            self._first[step] = first
            targets = range(first, first + step.sequences * step.width)
            self.pool.copy_blocks([(block - first) % step.width for block in targets], list(targets))
            first = targets.stop

    def _filling(self, start: int, count: int) -> Prepared:
        tables = torch.arange(-(-(start + count) // BLOCK))[None]
        batch = Batch(starts=np.array([start]), lengths=np.array([count]), tables=tables)
        return self.ops.prepare(batch, self.pool, self.rotaries, self.weights.spec.attentions)
