"""The identity of a worker's arithmetic: workers with equal ids give equal tokens, bit for bit."""

import json
import platform
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version

import torch

from kernels.backend import Backend
from worker.execution.config import RunnerConfig


def numerics_id(config: RunnerConfig, ops: Backend, revision: str, rotary: Sequence[int]) -> str:
    """Hex digest over build, weights, dtype, instruction set, what the backend says of its arithmetic, flags, and what
    of the served length decides the `rotary` tables.
    """
    facts = {
        "build": _build(),
        "torch": torch.__version__,
        "backend": [ops.name, ops.numerics],
        "weights": revision,
        "dtype": config.dtype,
        "isa": instruction_set(),
        "deterministic": config.deterministic,
        "rotary": list(rotary),
    }
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def instruction_set() -> str:
    """The machine's architecture and the vector and matrix extensions that torch uses."""
    tiles = "+amx" if torch.cpu._is_amx_tile_supported() else ""
    return f"{platform.machine()}/{torch.backends.cpu.get_cpu_capability()}{tiles}"


def _build() -> str:
    """The installed version; a source tree that is not installed has none."""
    try:
        return version("octavo")
    except PackageNotFoundError:
        return "not installed"
