"""The prefix cache's hashes: chained BLAKE2b-128 over full blocks of tokens, the same on both sides of the wire.

A chain begins at a seed that holds the model's revision, the adapter's digest and the tenant's salt, each with its type and its length,
so that no field can be taken for another. Block i's hash covers its own tokens (little-endian uint32) and the hash before it.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice

BLOCK_SIZE = 16  # tokens
HASH_BYTES = 16
PUBLISH_EVERY = 4  # blocks: routers see every fourth hash of a chain

_MODEL, _ADAPTER, _SALT = b"M", b"A", b"S"


def chain_seed(*, model_revision: str, adapter_digest: bytes = b"", salt: bytes = b"") -> bytes:
    """The hash before block 0."""
    fields = ((_MODEL, model_revision.encode()), (_ADAPTER, adapter_digest), (_SALT, salt))
    tagged = b"".join(tag + len(value).to_bytes(4, "little") + value for tag, value in fields)
    return blake2b(tagged, digest_size=HASH_BYTES).digest()


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Little-endian uint32, whatever the machine's order."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def next_hash(parent: bytes, block: Sequence[int]) -> bytes:
    """The hash of one full block of tokens after `parent`."""
    return blake2b(parent + token_bytes(block), digest_size=HASH_BYTES).digest()


def block_hashes(seed: bytes, tokens: Sequence[int], block_size: int = BLOCK_SIZE) -> Iterator[bytes]:
    """The hashes of all full blocks of `tokens`, first to last."""
    packed, stride, parent = token_bytes(tokens), 4 * block_size, seed
    for start in range(0, len(packed) - stride + 1, stride):
        parent = blake2b(parent + packed[start : start + stride], digest_size=HASH_BYTES).digest()
        yield parent


def published(hashes: Sequence[bytes]) -> Iterator[bytes]:
    """Those of a chain's hashes that workers publish and routers probe: the 4th, 8th, and so on."""
    return islice(hashes, PUBLISH_EVERY - 1, None, PUBLISH_EVERY)
