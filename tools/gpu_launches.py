"""Every launch of the GPU backend, compiled for a GPU that need not be there, and what the compiled code takes of one.

The project's own launch functions run on CPU tensors; only the last step, the start on a device, is replaced by a compilation with the true
specialisation of every argument. Must not be imported where Triton interprets.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels.gpu.arch import SHARED_LIMIT, Arch, interpreted
from kernels.gpu.launch import Grid, Launcher
from kernels.gpu.tiles import DEFAULT, Tiles
from tools.gpu_cases import cases

UNITS = {"sm_80": 108, "sm_89": 142, "sm_90": 132, "gfx942": 304}  # A100, L40S, H100 and H200, MI300X


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One compiled kernel. `spilled` are bytes of registers that went to memory, `shared` bytes a block."""

    arch: str
    kernel: str
    case: str
    warps: int
    stages: int
    registers: int
    spilled: int
    shared: int

    def faults(self) -> list[str]:
        """Why it must not be served."""
        limit = SHARED_LIMIT[self.arch]
        spill = [f"spills {self.spilled}"] if self.spilled else []
        return spill + ([f"shared memory over {limit}"] if self.shared > limit else [])

    def line(self) -> str:
        """For the table."""
        faults = "".join(f"  ** {fault}" for fault in self.faults())
        return (
            f"{self.arch:7} {self.kernel:22} {self.case:34} {self.warps:2}w {self.stages}s {self.registers:4} regs "
            f"{self.spilled:5} spilled {self.shared:7} B shared{faults}"
        )


class Driver:
    """What Triton asks of a device's driver before it launches, for a device that is not there. Each architecture has a number of its own:
    Triton keeps a kernel's compiled code by the device's number alone.
    """

    def __init__(self, arch: str):
        self._target, self._number = target(arch), list(SHARED_LIMIT).index(arch)

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """The architecture's."""
        return self._number

    def get_current_stream(self, _device: int | None = None) -> int:
        """The default one."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors lie."""
        return torch.device("cpu")


def target(arch: str) -> GPUTarget:
    """As Triton names it."""
    return GPUTarget("hip", arch, 64) if arch.startswith("gfx") else GPUTarget("cuda", int(arch[3:]), 32)


class Compiler:
    """A Launcher's `start` that compiles for one architecture and reports."""

    def __init__(self, arch: str):
        if interpreted():
            raise RuntimeError("Triton interprets in this process (TRITON_INTERPRET): nothing would be compiled")
        self._arch = arch
        self._seen: dict[str, Report] = {}
        self.case = ""
        driver.set_active(Driver(arch))

    def __call__(self, kernel: Any, grid: Grid, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Compile; keep a report of code that is new."""
        made = kernel.run(*args, grid=grid, warmup=True, **options)
        if made.metadata.target != target(self._arch):
            raise RuntimeError(f"asked for {self._arch}, Triton gave code for {made.metadata.target}")
        if made.hash not in self._seen:
            self._seen[made.hash] = self._report(made, kernel.fn.__name__)

    def take(self) -> list[Report]:
        """Reports of what was compiled so far, each once."""
        return list(self._seen.values())

    def _report(self, made: Any, kernel: str) -> Report:
        registers, spilled = _amd(made) if self._arch.startswith("gfx") else _nvidia(made)
        return Report(
            arch=self._arch,
            kernel=kernel.removesuffix("_kernel"),
            case=self.case,
            warps=made.metadata.num_warps,
            stages=made.metadata.num_stages,
            registers=registers,
            spilled=spilled,
            shared=made.metadata.shared,
        )


def compiled(arch: str, path: Path = DEFAULT, *, quick: bool = False, match: str = "") -> Iterator[Report]:
    """The reports of all launches on one architecture, case by case, with the tiles of the table at `path`."""
    compiler = Compiler(arch)
    facts = Arch(name=arch, table=arch, units=UNITS[arch], device=torch.device("cpu"))
    told = 0
    for name, exact, launch in cases(quick=quick):
        if match not in name:
            continue
        compiler.case = name
        launch(Launcher(facts, Tiles.read(arch, path), exact=exact, start=compiler))
        reports = compiler.take()
        yield from reports[told:]
        told = len(reports)


def _nvidia(made: Any) -> tuple[int, int]:
    """Registers of a thread and the bytes of its stack, which holds nothing but spilled registers: kernels have no arrays."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(made.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(binary)]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
    text = told.stdout + told.stderr
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text) + _number(r"LOCAL:(\d+)", text)


def _amd(made: Any) -> tuple[int, int]:
    """Vector registers (those for matrices too), and a lane's bytes of scratch memory, which holds nothing but spilled registers. Scalar
    registers that the compiler lays into lanes of vector registers stay on the chip and are counted with those.
    """
    text = made.asm["amdgcn"]
    return _number(r"\.vgpr_count:\s+(\d+)", text), _number(r"\.private_segment_fixed_size:\s+(\d+)", text)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's report has no {pattern}: {text[:200]!r}")
    return int(found.group(1))
