"""Random LoRA adapters for a model, as PEFT directories that load like any other: for figures, and to try out how adapters are served.

Their weights are drawn, so they change what the model says, and to no purpose.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from shared.errors import InvalidRequest
from worker.adapters.modules import BaseModel, Target, base_model
from worker.models.checkpoint import Checkpoint
from worker.models.registry import find
from worker.models.spec import lora_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 1024
STRENGTH = 0.02  # standard deviation of B: a product adds a few per cent to what a projection of unit inputs gives
_PREFIX = "base_model.model."
_FIRST_NAME = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """What is drawn: `modules` by the last part of their paths (none: every projection of the layers)."""

    rank: int
    seed: int
    modules: tuple[str, ...] = ()


def base_of(checkpoint: Checkpoint) -> BaseModel:
    """What adapters of the model may change."""
    spec = find(checkpoint.config).spec(checkpoint.config)
    return base_model(checkpoint, lora_shapes(spec), max_rank=MAX_RANK)


def write(folder: Path, base: BaseModel, adapter: Adapter) -> Path:
    """The adapter's directory; the same files for the same adapter. Raises InvalidRequest where the model has no such modules."""
    targets = dict(_targets(base, adapter.modules))
    if not targets:
        raise InvalidRequest(f"the model has none of {', '.join(adapter.modules)}", param="modules")
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted({path.rpartition(".")[2] for path in targets})
    (folder / CONFIG).write_text(json.dumps(_config(adapter, names), indent=2) + "\n")
    save_file(_drawn(targets, adapter), folder / WEIGHTS)
    return folder


def write_many(
    folder: Path, base: BaseModel, *, count: int, rank: int, seed: int, progress: Callable[[str], None]
) -> list[Path]:
    """`count` of them, `adapter-001` and so on, each of another seed from `seed` on."""
    made = []
    for number in range(count):
        name = f"adapter-{number + _FIRST_NAME:03d}"
        made.append(write(folder / name, base, Adapter(rank=rank, seed=seed + number)))
        progress(f"{name}: rank {rank}, {(made[-1] / WEIGHTS).stat().st_size >> 10} KiB")
    return made


def _targets(base: BaseModel, modules: Sequence[str]) -> Iterator[tuple[str, Target]]:
    """Projections of the layers. A family may know one by several paths, of which the first is taken."""
    seen = set()
    for path, target in base.modules.items():
        wanted = not modules or path.rpartition(".")[2] in modules
        if target.end is None and wanted and target not in seen:
            seen.add(target)
            yield path, target


def _config(adapter: Adapter, names: Sequence[str]) -> Mapping[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": 2 * adapter.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "target_modules": list(names),
    }


def _drawn(targets: Mapping[str, Target], adapter: Adapter) -> dict[str, torch.Tensor]:
    """float32, as PEFT saves what it has trained."""
    draw = torch.Generator().manual_seed(adapter.seed)
    tensors = {}
    for path, target in targets.items():
        a = torch.randn(adapter.rank, target.inside, generator=draw) / target.inside**0.5
        b = torch.randn(target.out, adapter.rank, generator=draw) * STRENGTH
        tensors[f"{_PREFIX}{path}.lora_A.weight"] = a
        tensors[f"{_PREFIX}{path}.lora_B.weight"] = b
    return tensors
