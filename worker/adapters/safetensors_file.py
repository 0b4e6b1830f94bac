"""A safetensors file, read once: its header first, which is checked before anything of its size is believed.

Format: 8 bytes of little-endian length, a JSON object of that length (name -> dtype, shape, data_offsets), then the data.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worker.adapters.errors import AdapterInvalid, AdapterMemory, shown
from worker.adapters.files import read_whole, regular

MAX_HEADER = 1 << 20  # bytes: over 6,000 tensors. Parsing holds up everything else in the process
MAX_DIMENSIONS = 8
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
        buffer = np.empty(self.length, np.uint8).data  # not zeroed first, which would hold up the process
        read_whole(self._file, self._where, buffer)
        return buffer


@contextmanager
def opened(path: Path, most: int) -> Iterator[TensorFile]:
    """The file at `path`, opened once. AdapterNotFound, AdapterInvalid and, where its data is over `most` bytes, AdapterMemory."""
    with regular(path) as raw:
        file = TensorFile(raw, path.name, os.fstat(raw.fileno()).st_size)
        if file.length > most:
            raise AdapterMemory(f"{path.name} holds {file.length} bytes; {most} are for adapters in host memory")
        yield file


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
    end, there = max((entry.end for entry in entries.values()), default=0), size - 8 - length
    if there < end:
        raise AdapterInvalid(f"{where}: truncated: {there} bytes of data, where its header tells of {end}")
    _check_places(entries.values(), there, where)
    return entries, end


def _check_places(entries: Iterable[TensorEntry], there: int, where: str) -> None:
    """The format has each byte of the data belong to one tensor: else a small adapter could take any amount of memory."""
    at = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            raise AdapterInvalid(f"{where}: {shown(entry.name)} begins at byte {entry.begin} of the data, not at {at}")
        at = entry.end
    if at != there:
        raise AdapterInvalid(f"{where}: {there - at} bytes of data that no tensor has")


def _json(data: bytes, where: str) -> dict[str, Any]:
    try:
        table = json.loads(data, object_pairs_hook=_distinct)
    except AdapterInvalid as error:
        raise AdapterInvalid(f"{where}: {error.message}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterInvalid(f"{where}: its header is not JSON") from error
    if not isinstance(table, dict):
        raise AdapterInvalid(f"{where}: its header is not an object")
    return table


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The format has no key twice: readers differ in which they take."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise AdapterInvalid(f"its header has {shown(key)} twice")
        table[key] = value
    return table


def _entry(name: str, fields: Any, where: str) -> TensorEntry:
    shape, offsets, dtype = (_field(fields, key) for key in ("shape", "data_offsets", "dtype"))
    place = f"{where}: {shown(name)}"
    if not (_sizes(shape, MAX_DIMENSIONS) and _sizes(offsets, 2) and len(offsets) == 2 and isinstance(dtype, str)):
        raise AdapterInvalid(f"{place}: dtype, shape or data_offsets are not what they should be")
    if dtype not in DTYPES:
        raise AdapterInvalid(f"{place}: dtype {shown(dtype)} is not served; served: {', '.join(DTYPES)}")
    needed, held = prod(shape) * DTYPES[dtype].itemsize, offsets[1] - offsets[0]
    if needed != held:
        raise AdapterInvalid(f"{place}: {held} bytes, where {dtype} {shape} takes {needed}")
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), begin=offsets[0], end=offsets[1])


def _field(fields: Any, key: str) -> Any:
    return fields.get(key) if isinstance(fields, Mapping) else None


def _sizes(value: Any, most: int) -> bool:
    """Whether it is a list of at most so many sizes."""
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(each) is int and 0 <= each < 1 << 48 for each in value)
    )
