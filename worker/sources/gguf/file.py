"""The GGUF container: key-value pairs and a table of tensors before the tensors' bytes. Source: ggml's docs/gguf.md.

The gguf package reads the same, but takes 15 s for the 262,144 tokens of a Gemma, for each of which it makes several arrays.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.sources.errors import SourceError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# By the number of a value's type.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_NESTING = 4  # arrays in arrays
_MAX_DIMENSIONS = 4


class _Malformed(Exception):
    """What is wrong; the caller knows the file's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """`shape` has rows first, as in torch; `kind` is ggml's number of a type; `offset` is in bytes from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufFile:
    """A mapped file. Strings that are not UTF-8 have U+FFFD where they are not."""

    path: Path
    values: Mapping[str, Any]
    tensors: Sequence[StoredTensor]
    _bytes: npt.NDArray[np.uint8]

    def rows(self, tensor: StoredTensor, row_bytes: int) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, [*all but the last of its dimensions, row_bytes], mapped. SourceError where the file ends before."""
        shape = (*tensor.shape[:-1], row_bytes)
        size = int(np.prod(shape, dtype=object))
        if tensor.offset + size > self._bytes.size:
            raise SourceError(
                f"{self.path}: tensor {tensor.name} ends beyond the file ({self._bytes.size} bytes): it is cut short"
            )
        return self._bytes[tensor.offset : tensor.offset + size].reshape(shape)


def open_file(path: Path) -> GgufFile:
    """Map the file and read what stands before the tensors. SourceError where it is no GGUF file, or is cut short."""
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
        values, tensors = _read(_Cursor(mapped.data))
    except (OSError, ValueError, _Malformed) as error:
        raise SourceError(f"{path}: expected a whole GGUF file: {error}") from error
    return GgufFile(path=path, values=values, tensors=tensors, _bytes=mapped)


class _Cursor:
    """Reads little-endian values one after the other. _Malformed where the file ends before one does."""

    def __init__(self, data: memoryview):
        self._data = data
        self.at = 0

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self._data):
            raise _Malformed(f"it ends at byte {len(self._data)}, inside its head")
        piece = self._data[self.at : end]
        self.at = end
        return piece

    def scalar(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def string(self) -> str:
        return str(self.take(self.scalar("Q")), "utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        if kind not in _SCALARS:
            raise _Malformed(f"a value of the unknown type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if depth > _MAX_NESTING:
            raise _Malformed(f"arrays in arrays, more than {_MAX_NESTING} deep")
        if kind in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[kind])
            numbers: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
            return numbers
        return self._many(count, lambda: self.value(kind, depth))

    def _many(self, count: int, read: Callable[[], Any]) -> list[Any]:
        """Every element takes bytes, so that a count that is not true ends at the file's end."""
        return [read() for _ in range(count)]


def _read(cursor: _Cursor) -> tuple[dict[str, Any], list[StoredTensor]]:
    if bytes(cursor.take(4)) != _MAGIC:
        raise _Malformed("it does not begin with GGUF")
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise _Malformed(f"version {version}; expected one of {', '.join(map(str, _VERSIONS))}, little-endian")
    tensor_count, value_count = cursor.scalar("Q"), cursor.scalar("Q")
    values: dict[str, Any] = {}
    for _ in range(value_count):
        key = cursor.string()
        if key in values:
            raise _Malformed(f"two values of the key {key!r:.80}")
        values[key] = cursor.value(cursor.scalar("I"))
    return values, _tensors(cursor, tensor_count, values.get("general.alignment", 32))


def _tensors(cursor: _Cursor, count: int, alignment: Any) -> list[StoredTensor]:
    if not isinstance(alignment, int) or alignment <= 0:
        raise _Malformed(f"general.alignment is {alignment!r:.40}")
    table = [_entry(cursor) for _ in range(count)]
    start = -(-cursor.at // alignment) * alignment
    names = [name for name, *_ in table]
    if len(set(names)) < len(names):
        raise _Malformed("two tensors of one name")
    return [
        StoredTensor(name=name, shape=shape, kind=kind, offset=start + offset) for name, shape, kind, offset in table
    ]


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise _Malformed(f"tensor {name!r:.80} has {dimensions} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))
    if 0 in shape:
        raise _Malformed(f"tensor {name!r:.80} has a dimension of 0")
    return name, shape[::-1], cursor.scalar("I"), cursor.scalar("Q")
