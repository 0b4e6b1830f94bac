"""How much memory there is, and how many KV blocks to make of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kernels.kv import BLOCK
from worker.cgroups import groups, lines

_AUTO_SHARE = 0.5  # of free memory for KV; the rest is for activations, the page cache and neighbours
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit


class _Names(NamedTuple):
    """Of a control group's files, and the key of its page cache in memory.stat."""

    limit: str
    usage: str
    cache: str


_FILES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


class InsufficientMemory(Exception):
    """Not even one sequence of the wanted length fits. The message names needed, available and the longest context
    that would fit.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class KvSize:
    """What was chosen: blocks of 16 positions, their bytes, and the longest sequence."""

    blocks: int
    bytes: int
    max_model_len: int


def size_kv(
    *, block_bytes: int, budget: int, wanted_len: int, model_len: int, max_running: int, capped: bool
) -> KvSize:
    """Blocks that `budget` bytes hold, and the longest sequence: `wanted_len`, or where that is 0 what model and
    budget allow.

    `capped`: no more blocks than every slot could use twice over (where nobody asked for so many bytes).
    """
    fitting = max(0, budget) // block_bytes
    length = wanted_len or min(model_len, fitting * BLOCK)
    needed = -(-length // BLOCK)
    if length < 1 or needed > fitting:
        least = wanted_len or BLOCK  # where no length is asked for, a block would do
        raise InsufficientMemory(_message(max(needed, 1) * block_bytes, budget, least, fitting * BLOCK))
    blocks = min(fitting, 2 * max_running * needed) if capped else fitting
    return KvSize(blocks=blocks, bytes=blocks * block_bytes, max_model_len=length)


def auto_budget(share: float, root: Path = Path("/")) -> int:
    """KV bytes to use where no number was given, by a worker whose part of what is free is `share`."""
    return int(available_memory(root) * _AUTO_SHARE * share)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the machine's, or less where a control group limits it. `root` holds
    proc and sys.
    """
    return min([_mem_available(root), *_group_rests(root)])


def _message(needed: int, available: int, length: int, fits: int) -> str:
    return (
        f"not enough memory for the KV cache: one sequence of {length} tokens needs {_mib(needed)}, available are {_mib(available)}; "
        f"the longest context that would fit is {fits} tokens (see --max-model-len and --kv-memory)"
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _mem_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} does not tell MemAvailable")


def _group_rests(root: Path) -> Iterator[int]:
    """What each control group of this process has left."""
    for group in groups("memory", root):
        names = _FILES[group.version]
        most = lines(group.folder / names.limit)
        if most and most[0] != "max" and int(most[0]) < _UNLIMITED:
            used = int(lines(group.folder / names.usage)[0])
            yield max(0, int(most[0]) - used + _stat(group.folder / "memory.stat", names.cache))


def _stat(file: Path, key: str) -> int:
    """One of memory.stat's numbers; page cache that the system gives back counts as free."""
    return next((int(line.split()[1]) for line in lines(file) if line.split()[0] == key), 0)
