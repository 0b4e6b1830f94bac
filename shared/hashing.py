"""The prefix cache's hashes: chained BLAKE2b-128 over full blocks of tokens, the same on both sides of the wire.

A chain begins at a seed that holds the model's revision, the adapter's digest and the tenant's salt, each with its type and its length,
so that no field can be taken for another. Block i's hash covers its own tokens (little-endian uint32) and the hash before it.

The chain of a prompt that begins with a public prefix is seeded without a salt, and takes it up behind that prefix's last block: whoever
begins so finds those blocks, and nothing that follows them but under its own salt.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def salted(parent: bytes, salt: bytes) -> bytes:
    """What stands for `parent` before the first block behind a public prefix. Its domain is its own: no block and no seed hashes so."""
    return blake2b(parent + salt, digest_size=HASH_BYTES, person=b"octavo-salt").digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """How a prompt's blocks are chained: from `seed`, and with `public_blocks` above 0 under `salt` from that block on."""

    seed: bytes
    public_blocks: int = 0
    salt: bytes = b""

    def parent(self, index: int, before: bytes) -> bytes:
        """What block `index` is hashed after, `before` being the hash of the block before it (for block 0 the seed)."""
        return salted(before, self.salt) if index and index == self.public_blocks else before

    def hashes(self, tokens: Sequence[int]) -> list[bytes]:
        """Those of all full blocks of `tokens`, first to last."""
        if not self.public_blocks:
            return list(block_hashes(self.seed, tokens))
        at = self.public_blocks * BLOCK_SIZE
        public = list(block_hashes(self.seed, tokens[:at]))
        if len(public) < self.public_blocks:
            return public
        return [*public, *block_hashes(salted(public[-1], self.salt), tokens[at:])]


def chain(*, model_revision: str, adapter_digest: bytes = b"", salt: bytes = b"", salt_from: int = 0) -> Chain:
    """The chain whose salt counts from token `salt_from` on, rounded down to whole blocks; 0 is from the start."""
    public = salt_from // BLOCK_SIZE
    seed = chain_seed(model_revision=model_revision, adapter_digest=adapter_digest, salt=b"" if public else salt)
    return Chain(seed=seed, public_blocks=public, salt=salt if public else b"")


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
