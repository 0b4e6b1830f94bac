"""The GPU that kernels are compiled for, as the tile table names it."""

import os
from dataclasses import dataclass

import torch

from kernels.errors import NoBackend

INTERPRETER = "interpreter"
SHARED_LIMIT = {"sm_80": 166_912, "sm_89": 101_376, "sm_90": 232_448, "gfx942": 65_536}  # bytes a block may have


class NoGpu(NoBackend):
    """There is neither a GPU nor Triton's interpreter (TRITON_INTERPRET=1). The message says what was looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arch:
    """`table` names the architecture whose tiles are used, `name` the one that is there. `units` are its streaming
    multiprocessors or compute units; `device` is where tensors lie.
    """

    name: str
    table: str
    units: int
    device: torch.device


def table_of(name: str) -> str:
    """The tabled architecture whose limits hold on `name` too (sm_86 has the shared memory of sm_89, and so on)."""
    if name in SHARED_LIMIT or name == INTERPRETER:
        return name
    if name.startswith("gfx"):
        return "gfx942"
    major, minor = divmod(int(name.removeprefix("sm_")), 10)
    if major in (9, 10, 11):
        return "sm_90"
    return "sm_80" if (major, minor) in ((8, 0), (8, 7)) else "sm_89"


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def present() -> Arch:
    """The GPU of this process, or the interpreter. NoGpu where there is neither."""
    if interpreted():
        return Arch(name=INTERPRETER, table=INTERPRETER, units=4, device=torch.device("cpu"))
    if not torch.cuda.is_available():
        raise NoGpu("torch finds no GPU, and TRITON_INTERPRET=1 is not set")
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    name = facts.gcnArchName.split(":")[0] if torch.version.hip else f"sm_{facts.major}{facts.minor}"
    device = torch.device("cuda", torch.cuda.current_device())
    return Arch(name=name, table=table_of(name), units=facts.multi_processor_count, device=device)
