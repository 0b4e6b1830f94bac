"""The decoder that every family of the registry runs as: a spec, its weights, and calls of ops."""

from collections.abc import Callable

import torch

from kernels.backend import Backend, Pool, Prepared
from kernels.weights import Layer
from worker.layers.decoder import Ends, load_ends, load_layer
from worker.layers.weights import WeightReader
from worker.models.checkpoint import Checkpoint
from worker.models.registry import find
from worker.models.spec import DecoderSpec, Family, Names

Progress = Callable[[int, int], None]


def silent(_done: int, _total: int) -> None:
    """A progress that tells nobody."""


class Decoder:
    """Weights and the forward pass. Holds nothing that belongs to a request."""

    def __init__(self, spec: DecoderSpec, ends: Ends, layers: tuple[Layer, ...], ops: Backend):
        self.spec = spec
        self._ends = ends
        self._layers = layers
        self._ops = ops

    def forward(self, tokens: torch.Tensor, step: Prepared, pool: Pool) -> torch.Tensor:
        """tokens int64 [tokens] of the prepared step -> the residual stream after the last layer, [tokens, hidden].
        Writes KV.
        """
        return self._ops.layers(self._ops.embed(tokens, self._ends.embedding, step), self._layers, step, pool)

    def logits(self, x: torch.Tensor, rows: torch.Tensor, step: Prepared | None = None) -> torch.Tensor:
        """Logits float32 [rows, vocabulary] of some rows of what `forward` gave for `step`, whose adapters run. None: none."""
        return self._ops.logits(x, rows, self._ends.head, step)


def load(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    ops: Backend,
    *,
    invariant: bool,
    progress: Progress = silent,
) -> Decoder:
    """Read and pack layer by layer; `progress(done, total)` counts layers. ModelError tells what is wrong with the
    checkpoint.
    """
    family = find(checkpoint.config)
    spec = family.spec(checkpoint.config)
    names = _names(family, checkpoint)
    reader = WeightReader(checkpoint, dtype, ops, invariant=invariant)
    ends = load_ends(reader, spec, names)
    layers = []
    for number in range(spec.layers):
        layers.append(load_layer(reader, spec, names, number))
        progress(number + 1, spec.layers)
    return Decoder(spec, ends, tuple(layers), ops)


def _names(family: Family, checkpoint: Checkpoint) -> Names:
    held = checkpoint.names()
    return next((n for n in family.names if f"{n.embedding}.weight" in held), family.names[0])
