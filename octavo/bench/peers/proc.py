"""CPU time and memory of processes that run, from /proc (Linux): proc_pid_stat(5), proc_pid_status(5)."""

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def _stat(pid: int, root: Path) -> list[str] | None:
    """The fields behind the command's name, from `state` (field 3) on; None of a process that is gone."""
    try:
        return (root / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None


def tree(pid: int, root: Path = _PROC) -> tuple[int, ...]:
    """The process and all that it started, and so on, parents first."""
    children: dict[int, list[int]] = {}
    for entry in root.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name), root)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return tuple(found)


def seconds(pids: Iterable[int], root: Path = _PROC) -> float:
    """User and system time of these processes, all their threads together, so far; those that are gone count as 0."""
    stats = (_stat(pid, root) for pid in pids)
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in stats if fields)
    return ticks / os.sysconf("SC_CLK_TCK")


def peaks(pids: Iterable[int], root: Path = _PROC) -> dict[int, int]:
    """The largest resident size of each process so far, in bytes; those that are gone are left out."""
    found = {}
    for pid in pids:
        try:
            status = (root / str(pid) / "status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                found[pid] = int(line.split()[1]) * 1024
    return found
