"""A model's revision: BLAKE2b over its canonical configuration and the bytes of its weight files.

Reading all weights takes seconds to minutes, so that a file's digest is remembered by (path, size, mtime): a warm start only stats.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES = 16
_PIECE = 4 << 20  # bytes read at once
_READERS = 4  # files hashed at once; hashlib lets go of the interpreter
_VOLATILE = frozenset({"_name_or_path", "transformers_version"})  # these say nothing of what the model computes


def revision(config: Mapping[str, Any], files: Sequence[Path], cache: Path) -> str:
    """Hex digest over `config` and the contents of `files` under their names. `cache` is the directory of remembered digests."""
    with ThreadPoolExecutor(_READERS) as pool:
        digests = dict(
            zip((file.name for file in files), pool.map(lambda file: file_digest(file, cache), files), strict=True)
        )
    stable = {key: value for key, value in config.items() if key not in _VOLATILE}
    return _hexdigest(canonical_json({"config": stable, "files": digests}))


def canonical_json(value: Any) -> bytes:
    """One spelling of each value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def file_digest(file: Path, cache: Path) -> str:
    """Hex digest of the file's bytes: remembered where size and mtime are as they were, else read and remembered."""
    path = file.resolve()
    stat = path.stat()
    identity = {"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    memory = cache / "digests" / f"{_hexdigest(str(path).encode())}.json"
    known = _recall(memory)
    if all(known.get(key) == value for key, value in identity.items()) and isinstance(known.get("digest"), str):
        return str(known["digest"])
    fresh = _read_digest(path)
    _remember(memory, {**identity, "digest": fresh})
    return fresh


def _hexdigest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _read_digest(path: Path) -> str:
    state = blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            state.update(piece)
    return state.hexdigest()


def _recall(memory: Path) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(memory: Path, entry: Mapping[str, Any]) -> None:
    """Write whole or not at all: two workers may start at once. A cache that cannot be written costs only time."""
    aside = memory.with_name(f"{memory.name}.{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(canonical_json(entry))
        aside.replace(memory)
    except OSError as error:
        _LOG.warning("cannot remember the digest of %s: %s", entry["path"], error)
