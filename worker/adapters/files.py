"""An adapter's files, which somebody else may have made: only what is a file is opened, and what changes under the reader is noticed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from worker.adapters.errors import AdapterInvalid, AdapterNotFound


@contextmanager
def regular(path: Path) -> Iterator[FileIO]:
    """The file at `path`, opened without waiting: a pipe would wait for its writer, and everyone behind it with it.

    Raises AdapterNotFound, and AdapterInvalid where it is something else than a file or cannot be read.
    """
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise AdapterInvalid(f"{path.name} is no file")
            yield file
    except FileNotFoundError as error:
        raise AdapterNotFound(f"no {path.name} there") from error
    except OSError as error:
        raise AdapterInvalid(f"{path.name} cannot be read: {error.strerror}") from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_whole(file: FileIO, where: str, into: memoryview) -> None:
    """Fills `into`. Raises AdapterInvalid where the file ends before, or is written to meanwhile: half of it would be another version's."""
    before = _state(file)
    got = 0
    while got < len(into):
        count = file.readinto(into[got:])  # at most 2 GiB at a time
        if not count:
            raise AdapterInvalid(f"{where}: truncated while it was read, {got} of {len(into)} bytes of data")
        got += count
    if _state(file) != before:
        raise AdapterInvalid(f"{where} was written to while it was read")


def _state(file: FileIO) -> tuple[int, int]:
    now = os.fstat(file.fileno())
    return now.st_size, now.st_mtime_ns
