"""From what was asked for to the report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.backend import backend
from octavo.bench import machine, rates
from octavo.bench.bound import Limits
from octavo.bench.kernels.measure import measure
from octavo.bench.kernels.rig import Rig, Step
from octavo.bench.rates import Rate
from worker import auto
from worker.layers.weights import torch_dtype
from worker.sources.open import Source, open_checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """`decodes` are (batch, context), `prefills` (length, start); `ops` () are all of them."""

    model: Path
    backend: str
    isa: str
    threads: int
    dtype: str
    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[tuple[int, int], ...]
    ops: tuple[str, ...]
    rounds: int
    seconds: float


def report(asked: Asked) -> dict[str, Any]:
    """Rows of all cases, and the rates that their rooflines come from."""
    torch.set_num_threads(asked.threads)
    source: Source = open_checkpoint(str(asked.model))
    dtype = torch_dtype(auto.dtype(asked.dtype, source.checkpoint.config.get("dtype")))
    ops, reference = (backend(name, threads=asked.threads, isa=asked.isa) for name in (asked.backend, "reference"))
    decodes = [Step(sequences=batch, start=context, length=1) for batch, context in asked.decodes]
    prefills = [Step(sequences=1, start=start, length=length) for length, start in asked.prefills]
    with torch.inference_mode():
        other = Rig(reference, source.checkpoint, dtype, (*decodes, *prefills))
        rig = Rig(ops, source.checkpoint, dtype, (*decodes, *prefills), of=other)
    seen: list[dict[str, Rate]] = []

    def limits() -> Limits:
        seen.append(rates.measure(dtype, ops, asked.threads, repeats=3, seconds=asked.seconds))
        return rates.limits(seen[-1])

    rows = measure(rig, other, (decodes, prefills), limits, only=asked.ops, rounds=asked.rounds, seconds=asked.seconds)
    return {
        "tool": "octavo bench kernels",
        "model": asked.model.name,
        "backend": ops.name,
        "numerics": ops.numerics,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": asked.threads,
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "kernels": list(rows),
        "rates": [rates.told(one) for one in seen],
    }
