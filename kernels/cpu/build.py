"""Compiling the kernels once a machine, into a cache keyed by sources, flags and instruction set.

A library in the cache ends with a digest of what is before it, which the loader does not look at: a file that was cut short by a full disk
or a lost machine, or that is not ours, is never loaded (that could kill the process) but made again.
"""

import errno
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kernels.cpu.isa import LEVELS, X86, Level, compiler_flags
from kernels.errors import NoBackend

_ROOT = Path(__file__).parent.parent
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-pthread", "-fno-math-errno")
_TIMEOUT = 600  # seconds for one file
_SEAL = 16  # bytes of the digest
_WORK = "building-"  # and more: a build's own folder in the cache
_FULL = os.strerror(errno.ENOSPC)
_LOG = logging.getLogger("octavo.kernels")


class NoCompiler(NoBackend):
    """The kernels cannot be compiled here. The message tells why."""


class CompilerFailed(NoCompiler):
    """A compiler is there, and does not compile them for this level; it may know an older one."""


def library(level: Level, cache: Path | None = None) -> Path:
    """The shared library for that level: from the cache, which may have been filled elsewhere (an image's build), else
    compiled into it. Raises NoCompiler.
    """
    try:
        target = (cache or default_cache()) / f"octavo-cpu-{level}-{_key(level)}.so"
        if not _is_whole(target):
            if target.exists():
                _LOG.warning("%s is damaged, and is made again", target)
            _make(find_compiler(), level, target)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home directory
        raise NoCompiler(f"no place for the compiled kernels (set OCTAVO_KERNEL_CACHE): {error}") from error
    return target


def _is_whole(target: Path) -> bool:
    try:
        content = target.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return content[-_SEAL:] == _seal(content[:-_SEAL])


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SEAL, person=b"octavo-cpu").digest()


def _make(compiler: str, level: Level, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _turn(target.parent):
        if not _is_whole(target):  # another process may have made it
            _LOG.info("compiling the kernels for %s with %s, once; it may take a minute", level, compiler)
            _build(compiler, level, target)


@contextmanager
def _turn(cache: Path) -> Iterator[None]:
    """One process at a time builds there; what builds that were killed have left is removed.

    Where the file system knows no locks, several may build at a time: each works apart, and the last to finish replaces an equal file.
    """
    with (cache / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _LOG.info("no lock on %s: %s", cache, error)
        else:
            for left in cache.glob(f"{_WORK}*"):
                shutil.rmtree(left, ignore_errors=True)  # its compilers may still run for a moment
        yield


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
    """Of the sources, of how they are compiled, and of the architecture: machines of two may share a home directory."""
    flags = " ".join((platform.machine(), *_FLAGS, *compiler_flags(level))).encode()
    return _hash((flags, *(path.read_bytes() for path in _files("*.cpp", "*.h"))))


def _build(compiler: str, level: Level, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_WORK) as folder:
        objects = [Path(folder) / f"{number}.o" for number, _ in enumerate(_files("*.cpp"))]
        commands = [
            [compiler, *_FLAGS, *compiler_flags(level), "-c", str(source), "-o", str(made)]
            for source, made in zip(_files("*.cpp"), objects, strict=True)
        ]
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            list(pool.map(_run, commands))
        whole = Path(folder) / "whole.so"
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(whole)])
        with whole.open("ab") as file:
            file.write(_seal(whole.read_bytes()))
        whole.replace(target)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} failed: {error}") from error
    if done.returncode and _FULL in done.stderr:
        raise OSError(errno.ENOSPC, _FULL)
    if done.returncode:
        raise CompilerFailed(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")


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
