"""Where an adapter that somebody names lies: a path, an address that fsspec knows, or a name on the Hugging Face Hub."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from worker.adapters.directory import inside
from worker.adapters.errors import AdapterInvalid, AdapterMemory, AdapterNotFound, shown

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ("adapter_config.json", "adapter_model.safetensors")


@contextmanager
def located(source: str, root: Path | None, most: int) -> Iterator[Path]:
    """A directory with the adapter's files while the context lasts. What is far is fetched, `most` bytes at most.

    A relative path is one in the adapter directory `root`. Raises AdapterNotFound, AdapterInvalid and AdapterMemory.
    """
    if _ADDRESS.fullmatch(source):
        with tempfile.TemporaryDirectory(prefix="octavo-adapter-") as directory:
            _fetch(source, Path(directory), most)
            yield Path(directory)
        return
    yield _local(source, root)


def _local(source: str, root: Path | None) -> Path:
    try:
        return _found(source, root)
    except (
        OSError,
        RuntimeError,
    ) as error:  # longer than a path may be, not to be looked into, or of a user who is not
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise AdapterNotFound(f"{shown(repr(source))} cannot be looked for: {said}", param="source") from error


def _found(source: str, root: Path | None) -> Path:
    path = Path(source).expanduser()
    if path.is_absolute():
        if not path.is_dir():
            raise AdapterNotFound(f"{source!r} is no directory", param="source")
        return path
    if root is not None and (".." in path.parts or (root / path).exists()):
        return inside(root, source)
    if _HUB_ID.fullmatch(source) and ".." not in path.parts:
        return _from_hub(source)
    raise AdapterNotFound(
        f"{source!r} is no absolute path, nothing in the adapter directory, and no name on the Hub", param="source"
    )


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download  # slow to import

    try:
        return Path(snapshot_download(repository, allow_patterns=list(FILES), etag_timeout=10))
    except Exception as error:  # the HTTP client's errors are no OSErrors, and differ by version
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise AdapterNotFound(
            f"{repository!r} is nothing in the adapter directory (a path elsewhere must be absolute), "
            f"and cannot be had from the Hub: {said}",
            param="source",
        ) from error


def _fetch(source: str, target: Path, most: int) -> None:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise AdapterInvalid(
            f"{source!r}: addresses are read with fsspec, which is not installed (pip install 'octavo[fsspec]')",
            param="source",
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(source)
        for name in FILES:
            _fetch_file(system, f"{path.rstrip('/')}/{name}", target / name, most)
    except (OSError, ValueError, ImportError) as error:
        raise AdapterNotFound(f"{source!r} cannot be had: {error}", param="source") from error


def _fetch_file(system: Any, path: str, target: Path, most: int) -> None:
    size = system.size(path)
    if size is not None and size > most:
        raise AdapterMemory(f"{path} has {size} bytes; {most} are for adapters in host memory")
    system.get_file(path, str(target))
