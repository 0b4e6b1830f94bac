"""The adapter directory: `name` and `tenant/name`, each a PEFT directory. What a link leads out of it is not looked at."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.adapters.errors import AdapterInvalid, AdapterNotFound
from worker.adapters.names import checked, is_part

_LOG = logging.getLogger("octavo.worker")
CONFIG = "adapter_config.json"
FILES = (CONFIG, "adapter_model.safetensors", "adapter_model.bin")
MOST = 100_000  # adapters that are looked at

Signature = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An adapter in the directory. While its `signature` is the same, its files are taken to be."""

    name: str
    path: Path
    signature: Signature


def scan(root: Path) -> dict[str, Found]:
    """All that are there now. Raises OSError where the directory itself cannot be read."""
    base = root.resolve(strict=True)
    found: dict[str, Found] = {}
    for path in _adapters(base):
        if len(found) >= MOST:
            _LOG.warning("%s holds over %d adapters; the rest is not looked at", root, MOST)
            break
        try:
            one = _found(base, path)
        except (OSError, AdapterInvalid, AdapterNotFound) as error:
            _LOG.warning("adapter %s is not looked at: %s", path, error)
            continue
        found[one.name] = one
    return found


def find(root: Path, name: str) -> Found:
    """The adapter of this name. Raises AdapterNotFound, AdapterInvalid."""
    base = _real(root)
    path = base / checked(name)
    try:
        if not (path / CONFIG).is_file():
            raise AdapterNotFound(f"there is no adapter {name!r}", param="name")
        return _found(base, path)
    except OSError as error:  # longer than a file's name may be, not to be looked into, or just gone
        raise AdapterNotFound(f"there is no adapter {name!r}: {error.strerror}", param="name") from error


def inside(root: Path, source: str) -> Path:
    """A path that is meant relative to the directory. Raises AdapterInvalid where it leads out of it, AdapterNotFound where to nothing."""
    base = _real(root)
    path = _real(base / source)
    if not path.is_relative_to(base):
        raise AdapterInvalid(f"{source!r} leads out of the adapter directory", param="source")
    if not path.is_dir():
        raise AdapterNotFound(f"{source!r} is no directory in the adapter directory", param="source")
    return path


def signature(path: Path) -> Signature:
    """Of the files that are read: inode, size and time of the last change of each."""
    stats = ((path / file).stat() if (path / file).exists() else None for file in FILES)
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns) if one else () for one in stats)


def _real(path: Path) -> Path:
    """Where it leads; links that lead in a circle lead to themselves."""
    return Path(os.path.realpath(path))


def _adapters(base: Path) -> Iterator[Path]:
    for entry in _directories(base):
        if _is(entry / CONFIG, Path.is_file):
            yield entry
            continue
        yield from (each for each in _directories(entry) if _is(each / CONFIG, Path.is_file))


def _directories(path: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except OSError as error:
        _LOG.warning("%s cannot be listed: %s", path, error.strerror)
        return
    yield from (path / name for name in names if is_part(name) and _is(path / name, Path.is_dir))


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Whether it is; what cannot be told is not, and keeps nobody from looking at the rest."""
    try:
        return kind(path)
    except OSError as error:
        _LOG.warning("%s is not looked at: %s", path, error.strerror)
        return False


def _found(base: Path, path: Path) -> Found:
    files = [path, *(path / file for file in FILES)]
    if not all(_real(file).is_relative_to(base) for file in files):
        raise AdapterInvalid("a link in it leads out of the adapter directory")
    return Found(name=checked(path.relative_to(base).as_posix()), path=path, signature=signature(path))
