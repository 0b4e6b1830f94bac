"""Compiling the kernels once a machine, into a cache keyed by sources, flags and instruction set."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernels.cpu.isa import LEVELS, X86, Level, compiler_flags
from kernels.errors import NoBackend

_ROOT = Path(__file__).parent.parent
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-pthread", "-fno-math-errno")
_TIMEOUT = 600  # seconds for one file


class NoCompiler(NoBackend):
    """The kernels cannot be compiled here. The message tells why."""


def library(level: Level, cache: Path | None = None) -> Path:
    """The shared library for that level: from the cache, which may have been filled elsewhere (an image's build), else
    compiled into it. Raises NoCompiler.
    """
    target = (cache or default_cache()) / f"octavo-cpu-{level}-{_key(level)}.so"
    if not target.exists():
        compiler = find_compiler()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _build(compiler, level, target)
        except OSError as error:
            raise NoCompiler(f"no place for the compiled kernels (set OCTAVO_KERNEL_CACHE): {error}") from error
    return target


def find_compiler() -> str:
    """$CXX, else g++ or clang++ from PATH. Raises NoCompiler."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++", "clang++")):
        found = shutil.which(name)
        if found:
            return found
    raise NoCompiler("no C++ compiler: none of $CXX, g++, c++ and clang++ is on PATH")


def default_cache() -> Path:
    """Where compiled kernels are kept: $OCTAVO_KERNEL_CACHE, else below the user's cache directory."""
    named = os.environ.get("OCTAVO_KERNEL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"


def _key(level: Level) -> str:
    """Of the sources and of how they are compiled."""
    flags = " ".join((*_FLAGS, *compiler_flags(level))).encode()
    return _hash((flags, *(path.read_bytes() for path in _files("*.cpp", "*.h"))))


def _build(compiler: str, level: Level, target: Path) -> None:
    """Several processes may build at a time: each works apart, and the last to finish replaces an equal file."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder) / f"{number}.o" for number, _ in enumerate(_files("*.cpp"))]
        commands = [
            [compiler, *_FLAGS, *compiler_flags(level), "-c", str(source), "-o", str(made)]
            for source, made in zip(_files("*.cpp"), objects, strict=True)
        ]
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            list(pool.map(_run, commands))
        whole = Path(folder) / "whole.so"
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(whole)])
        whole.replace(target)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} failed: {error}") from error
    if done.returncode:
        raise NoCompiler(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")


def _files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in _ROOT.glob(f"*/{pattern}"))


def _hash(parts: Iterable[bytes]) -> str:
    whole = hashlib.blake2b(digest_size=10)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def main() -> None:
    """Compile for every level of this architecture into the cache: `python -m kernels.cpu.build`."""
    for level in LEVELS if platform.machine() in X86 else LEVELS[-1:]:
        sys.stdout.write(f"{library(level)}\n")


if __name__ == "__main__":
    main()
