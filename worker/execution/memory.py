"""How much memory there is, and how many KV blocks to make of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kernels.kv import BLOCK
from worker.cgroups import Group, groups, lines

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
    return min([_meminfo("MemAvailable", root), *(_rest(group, limit) for group, limit in _limits(root))])


def check_fits(wanted: int, root: Path = Path("/")) -> None:
    """Raises InsufficientMemory where this process could not have so many bytes for KV were it alone on the machine: the system would give
    them all the same, and end the process when it uses them.
    """
    most = min([_meminfo("MemTotal", root), *(limit for _, limit in _limits(root))])
    if wanted > most:
        raise InsufficientMemory(
            f"kv_memory is {_mib(wanted)}, and all the memory that this process may have is {_mib(most)}"
        )


def check_slots(count: int, length: int, nbytes: int, root: Path = Path("/")) -> None:
    """Raises InsufficientMemory where `nbytes`, for the state of `count` slots, are more than what KV leaves of the free memory."""
    most = int(available_memory(root) * (1 - _AUTO_SHARE))
    if nbytes > most:
        raise InsufficientMemory(
            f"not enough memory for {count} choices of up to {length} tokens: beside the KV cache they need {_mib(nbytes)}, available are "
            f"{_mib(most)} (see --max-running and --max-model-len)"
        )


def _message(needed: int, available: int, length: int, fits: int) -> str:
    return (
        f"not enough memory for the KV cache: one sequence of {length} tokens needs {_mib(needed)}, available are {_mib(available)}; "
        f"the longest context that would fit is {fits} tokens (see --max-model-len and --kv-memory)"
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _meminfo(key: str, root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} does not tell {key}")


def _limits(root: Path) -> Iterator[tuple[Group, int]]:
    """Each control group of this process that has a limit, and its bytes."""
    for group in groups("memory", root):
        most = lines(group.folder / _FILES[group.version].limit)
        if most and most[0] != "max" and int(most[0]) < _UNLIMITED:
            yield group, int(most[0])


def _rest(group: Group, limit: int) -> int:
    """What the group has left; page cache that the system gives back counts as free."""
    names = _FILES[group.version]
    used = int(lines(group.folder / names.usage)[0]) - _stat(group.folder / "memory.stat", names.cache)
    return max(0, limit - used)


def _stat(file: Path, key: str) -> int:
    """One of memory.stat's numbers."""
    return next((int(line.split()[1]) for line in lines(file) if line.split()[0] == key), 0)
