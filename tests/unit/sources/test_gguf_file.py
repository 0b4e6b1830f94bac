"""The container: what the gguf package writes and reads is what is read here, and no bytes do more than raise SourceError."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.sources.errors import SourceError
from worker.sources.gguf.file import open_file

NUMBERS = {
    GGUFValueType.UINT8: 250,
    GGUFValueType.INT8: -3,
    GGUFValueType.UINT16: 65_000,
    GGUFValueType.INT16: -30_000,
    GGUFValueType.UINT32: 4_000_000_000,
    GGUFValueType.INT32: -2_000_000_000,
    GGUFValueType.FLOAT32: 0.1,
    GGUFValueType.UINT64: 2**64 - 1,
    GGUFValueType.INT64: -(2**62),
    GGUFValueType.FLOAT64: 0.1,
    GGUFValueType.BOOL: True,
    GGUFValueType.STRING: "grüße 👋",
}
ARRAYS = {"ints": [1, -2, 3], "floats": [0.5, -1.25], "words": ["", "a", "\u2581b", "\n"], "flags": [True, False]}


def written(path: Path) -> Path:
    writer = GGUFWriter(str(path), "llama")
    for kind, value in NUMBERS.items():
        writer.add_key_value(f"one.{kind.name}", value, kind)
    for name, values in ARRAYS.items():
        writer.add_array(f"many.{name}", values)
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", np.arange(5, dtype=np.float16))
    writer.add_tensor("c.weight", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_of_every_type_are_those_that_the_gguf_package_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    theirs = {key: field.contents() for key, field in GGUFReader(str(path)).fields.items() if "GGUF." not in key}
    ours = open_file(path).values
    assert ours == theirs
    assert ours["one.STRING"] == "grüße 👋"
    assert ours["many.words"] == ARRAYS["words"]
    assert [type(value) for value in ours.values()] == [type(value) for value in theirs.values()]


def test_tensors_are_those_that_the_gguf_package_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    file, theirs = open_file(path), GGUFReader(str(path)).tensors
    assert [tensor.name for tensor in file.tensors] == [tensor.name for tensor in theirs]
    for ours, other in zip(file.tensors, theirs, strict=True):
        assert ours.shape == tuple(other.shape)[::-1]
        assert ours.kind == other.tensor_type
        assert bytes(file.rows(ours, ours.shape[-1] * other.data.itemsize)) == other.data.tobytes()


def head(*, version: int = 3, tensors: int = 0, values: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "m.gguf"),
        (b"GGUF", "ends at byte 4"),
        (b"GGML" + bytes(100), "does not begin with GGUF"),
        (head(version=1), "version 1"),
        (head(version=3 << 24), "version 50331648"),
        (head(values=2**63), "ends at byte"),
        (head(tensors=2**63), "ends at byte"),
        (head(values=1, rest=struct.pack("<Q", 2**64 - 1)), "ends at byte"),
        (head(values=1, rest=key("a", 99, b"")), "unknown type 99"),
        (head(values=1, rest=key("a", 9, array(8, 2**60))), "ends at byte"),
        (head(values=1, rest=key("a", 9, array(4, 2**62))), "ends at byte"),
        (head(values=1, rest=key("a", 9, array(9, 1) * 9)), "arrays in arrays"),
        (head(values=2, rest=key("a", 0, b"1") * 2), "two values of the key 'a'"),
        (head(values=1, rest=key("general.alignment", 4, struct.pack("<I", 0))), "general.alignment is 0"),
        (head(tensors=1, rest=struct.pack("<Q", 1) + b"t" + struct.pack("<I", 9)), "9 dimensions"),
    ],
)  # fmt: skip
def test_a_head_that_is_not_true_is_refused(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        open_file(path)
    assert named in caught.value.message


def test_a_tensor_that_ends_beyond_the_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-90])
    file = open_file(path)
    with pytest.raises(SourceError, match=r"tensor c\.weight ends beyond the file"):
        file.rows(file.tensors[2], 16)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 900), byte=st.integers(0, 255), cut=st.integers(0, 900))
def test_no_changed_byte_and_no_cut_does_more_than_raise(tmp_path: Path, at: int, byte: int, cut: int) -> None:
    path = written(tmp_path / "m.gguf")
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content[: len(content) - cut])
    try:
        file = open_file(path)
        found: list[Any] = [file.rows(tensor, 4) for tensor in file.tensors]
    except SourceError:
        return
    assert len(found) == len(file.tensors)


def test_a_dimension_of_nothing_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    content = path.read_bytes()
    shape = b"a.weight" + struct.pack("<IQQ", 2, 3, 2)
    assert content.count(shape) == 1
    path.write_bytes(content.replace(shape, b"a.weight" + struct.pack("<IQQ", 2, 0, 2)))
    with pytest.raises(SourceError, match=r"a\.weight.* dimension of 0"):
        open_file(path)
