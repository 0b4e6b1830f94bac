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

    def embed(tokens: torch.Tensor, weights: Embedding) -> torch.Tensor:
        seen["embedding"] = weights
        return tokens

    def layers(x: torch.Tensor, weights: tuple[Layer, ...], _step: Prepared, _pool: Pool) -> torch.Tensor:
        seen["layers"] = weights
        return x

    def logits(x: torch.Tensor, _rows: torch.Tensor, weights: Head) -> torch.Tensor:
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
    """One backend with the weights, and KV of random inputs behind every step of `steps`."""

    def __init__(self, ops: Backend, checkpoint: Checkpoint, dtype: torch.dtype, steps: Sequence[Step]):
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
        self._fill(whole)
        self._first: dict[Step, int] = {}
        self._copy(steps, whole // BLOCK)

    def prepared(self, step: Step) -> Prepared:
        """The step's preparation; KV of its sequences lies where it looks."""
        return self.ops.prepare(step.batch(self._first[step]), self.pool, self.rotaries, self.weights.spec.attentions)

    def _fill(self, length: int) -> None:
        """KV of one sequence of random inputs in the first blocks, all of which it fills."""
        draw = torch.Generator().manual_seed(5)
        for start in range(0, length, _FILL):
            count = min(_FILL, length - start)
            step = self._filling(start, count)
            x = torch.randn(count, self.weights.spec.hidden, generator=draw)
            for number, layer in enumerate(self.weights.layers):
                self.ops.attn_in(x.clone(), layer.attn_in, step, self.pool, number)

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
