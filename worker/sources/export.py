"""Write any source as a Hugging Face directory."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from shared.tokenizer import TokenizerBundle
from worker.models.checkpoint import Checkpoint
from worker.sources.shards import SINGLE

_REPORTS = 4  # how often the progress is told


def write_directory(
    checkpoint: Checkpoint,
    tokenizer: TokenizerBundle,
    directory: Path,
    *,
    dtype: torch.dtype,
    progress: Callable[[str], None],
) -> Path:
    """config.json, one safetensors file in `dtype` and the tokenizer's files, into `directory`, which is made where it is missing.

    All weights are in memory at once.
    """
    tokenizer.write_to(directory)
    config, weights = directory / "config.json", directory / SINGLE
    content = {**checkpoint.config, "dtype": str(dtype).removeprefix("torch.")}
    config.write_text(json.dumps(content, indent=2) + "\n")
    save_file(_converted(checkpoint, dtype, progress), weights, metadata={"format": "pt"})
    weights.chmod(config.stat().st_mode)  # safetensors gives it to its owner alone, whatever the umask
    return directory


def _converted(checkpoint: Checkpoint, dtype: torch.dtype, progress: Callable[[str], None]) -> dict[str, torch.Tensor]:
    names = sorted(checkpoint.names())
    stride = max(1, len(names) // _REPORTS)
    tensors = {}
    for number, name in enumerate(names, 1):
        tensors[name] = checkpoint.tensor(name).to(dtype).contiguous()
        if number % stride == 0:
            progress(f"converted {number} of {len(names)} tensors")
    return tensors
