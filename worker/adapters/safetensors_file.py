"""A safetensors file, read once: its header first, which is checked before anything of its size is believed.

Format: 8 bytes of little-endian length, a JSON object of that length (name -> dtype, shape, data_offsets), then the data.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import torch

from worker.adapters.errors import AdapterInvalid, AdapterMemory, AdapterNotFound

MAX_HEADER = 16 << 20  # bytes: over 50,000 tensors
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """Where a tensor lies: bytes `begin` to `end` of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """An open file whose header has been checked. `data` reads the rest of it."""

    def __init__(self, file: FileIO, where: str, size: int):
        self._file = file
        self._where = where
        self.entries, self.length = _header(file, where, size)

    def data(self) -> memoryview:
        """All tensors' bytes, in memory that is ours: a file that changes later changes nothing here."""
        buffer = bytearray(self.length)
        got = self._file.readinto(buffer)
        if got != self.length:
            raise AdapterInvalid(f"{self._where}: truncated while it was read, {got} of {self.length} bytes of data")
        return memoryview(buffer)


@contextmanager
def opened(path: Path, most: int) -> Iterator[TensorFile]:
    """The file at `path`, opened once. AdapterNotFound, AdapterInvalid and, where its data is over `most` bytes, AdapterMemory."""
    try:
        with path.open("rb", buffering=0) as raw:
            file = TensorFile(raw, path.name, os.fstat(raw.fileno()).st_size)
            if file.length > most:
                raise AdapterMemory(f"{path.name} holds {file.length} bytes; {most} are for adapters in host memory")
            yield file
    except FileNotFoundError as error:
        raise AdapterNotFound(f"{path.name} is not there") from error
    except OSError as error:
        raise AdapterInvalid(f"{path.name} cannot be read: {error.strerror}") from error


def tensor(data: memoryview, entry: TensorEntry) -> torch.Tensor:
    """A view of the data, or a copy where the tensor is not aligned."""
    dtype = DTYPES[entry.dtype]
    count = prod(entry.shape)
    if not count:
        return torch.zeros(entry.shape, dtype=dtype)
    part = data[entry.begin : entry.end]
    buffer = bytearray(part) if entry.begin % dtype.itemsize else part
    return torch.frombuffer(buffer, dtype=dtype, count=count).reshape(entry.shape)


def _header(file: FileIO, where: str, size: int) -> tuple[dict[str, TensorEntry], int]:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8:
        raise AdapterInvalid(
            f"{where}: truncated, or not safetensors: {size} bytes, of which its header should be {length}"
        )
    if length > MAX_HEADER:
        raise AdapterInvalid(f"{where}: a header of {length} bytes is over the {MAX_HEADER} that are read")
    table = _json(file.read(length), where)
    table.pop("__metadata__", None)
    entries = {name: _entry(name, fields, where) for name, fields in table.items()}
    end = max((entry.end for entry in entries.values()), default=0)
    if size - 8 - length < end:
        raise AdapterInvalid(f"{where}: truncated: {size - 8 - length} bytes of data, where its header tells of {end}")
    return entries, end


def _json(data: bytes, where: str) -> dict[str, Any]:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AdapterInvalid(f"{where}: its header is not JSON") from error
    if not isinstance(table, dict):
        raise AdapterInvalid(f"{where}: its header is not an object")
    return table


def _entry(name: str, fields: Any, where: str) -> TensorEntry:
    shape, offsets, dtype = (_field(fields, key) for key in ("shape", "data_offsets", "dtype"))
    if not (_sizes(shape) and _sizes(offsets) and len(offsets) == 2 and isinstance(dtype, str)):
        raise AdapterInvalid(f"{where}: {name}: dtype, shape or data_offsets are not what they should be")
    if dtype not in DTYPES:
        raise AdapterInvalid(f"{where}: {name}: dtype {dtype} is not served; served: {', '.join(DTYPES)}")
    needed, held = prod(shape) * DTYPES[dtype].itemsize, offsets[1] - offsets[0]
    if needed != held:
        raise AdapterInvalid(f"{where}: {name}: {held} bytes, where {dtype} {shape} takes {needed}")
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), begin=offsets[0], end=offsets[1])


def _field(fields: Any, key: str) -> Any:
    return fields.get(key) if isinstance(fields, Mapping) else None


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 48 for each in value)
