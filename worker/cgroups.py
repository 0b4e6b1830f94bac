"""The control groups that this process is in. Standard library alone: it is read before torch is imported."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One control group's `folder`, of `version` 1 or 2, whose files have different names."""

    version: int
    folder: Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[Group]:
    """Those whose limits on `controller` ("cpu", "memory") this process has, its own first and the root last, of both versions.

    Limits of any of them hold, so that the least counts. `root` holds proc and sys. In a container whose own group is all it sees, the
    path that proc tells may lie nowhere; the group is then what stands at the root.
    """
    for line in lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _up(2, root / "sys/fs/cgroup", path)
        elif controller in controllers.split(","):
            yield from _up(1, root / "sys/fs/cgroup" / controller, path)


def _up(version: int, base: Path, path: str) -> Iterator[Group]:
    own = base / path.lstrip("/")
    for folder in (own, *own.parents):
        yield Group(version=version, folder=folder)
        if folder == base:
            return


def lines(file: Path) -> list[str]:
    """The file's lines; none where it cannot be read (other kernels, other layouts)."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
