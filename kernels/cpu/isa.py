"""Which instructions this machine has, as the levels that the kernels are compiled for."""

import platform
from pathlib import Path
from typing import Literal, get_args

from kernels.errors import NotOffered

Level = Literal["amx", "avx512_bf16", "avx512", "avx2", "generic"]
LEVELS: tuple[Level, ...] = get_args(Level)
PAIRED: tuple[Level, ...] = ("amx", "avx512_bf16")  # they multiply bfloat16 as it is, in pairs: rows are rounded to it

X86 = ("x86_64", "AMD64")

_AVX2 = {"avx2", "fma", "f16c", "bmi2"}
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_BF16 = {"avx512_bf16"}
_AMX = {"amx_tile", "amx_bf16", "avx512_fp16"}
_NEEDED: dict[Level, set[str]] = {
    "amx": _AVX2 | _AVX512 | _BF16 | _AMX,
    "avx512_bf16": _AVX2 | _AVX512 | _BF16,
    "avx512": _AVX2 | _AVX512,
    "avx2": _AVX2,
    "generic": set(),
}
_FLAGS: dict[Level, tuple[str, ...]] = {
    "amx": ("-march=sapphirerapids",),
    "avx512_bf16": ("-march=x86-64-v4", "-mavx512bf16"),
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
    "generic": (),
}


def compiler_flags(level: Level) -> tuple[str, ...]:
    """What tells the compiler which instructions it may use."""
    return _FLAGS[level]


def levels(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[Level, ...]:
    """The levels that this machine can run, best first. `generic` is always among them."""
    have = _features(cpuinfo) if platform.machine() in X86 else set()
    return tuple(level for level in LEVELS if _NEEDED[level] <= have)


def choose(wanted: str = "auto", cpuinfo: Path = Path("/proc/cpuinfo")) -> Level:
    """The wanted level, or the best. NotOffered where it is unknown, or the machine lacks it."""
    there = levels(cpuinfo)
    if wanted == "auto":
        return there[0]
    for level in there:
        if level == wanted:
            return level
    raise NotOffered(f"cpu instruction set {wanted!r} cannot be used here; there are: auto, {', '.join(there)}")


def _features(cpuinfo: Path) -> set[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
