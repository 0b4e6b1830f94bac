"""What names a version of an adapter: SHA-256 over the configuration and the tensors that were loaded, whatever file they lay in."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from worker.adapters.safetensors_file import TensorEntry

DIGEST_BYTES = 32


def _tagged(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(8, "little") + value


def digest_of(config: Mapping[str, Any], tensors: Iterable[tuple[TensorEntry, memoryview]]) -> bytes:
    """Of the configuration in canonical JSON and, sorted by name, each tensor's name, dtype, shape and bytes; each field with its kind
    and length, so that none can be taken for another. The second of each pair is the data that the entry points into."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = sha256(_tagged(b"C", canonical.encode()))
    for entry, data in sorted(tensors, key=lambda item: item[0].name):
        shape = ",".join(map(str, entry.shape))
        for tag, value in ((b"N", entry.name), (b"D", entry.dtype), (b"S", shape)):
            digest.update(_tagged(tag, value.encode()))
        digest.update(b"B" + (entry.end - entry.begin).to_bytes(8, "little"))
        digest.update(data[entry.begin : entry.end])
    return digest.digest()
