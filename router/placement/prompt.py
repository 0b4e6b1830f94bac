"""What placement knows a prompt by: its first block, and the hashes that workers publish."""

from collections.abc import Sequence
from typing import NamedTuple

from shared.hashing import BLOCK_SIZE, Chain, next_hash, published


class PromptMarks(NamedTuple):
    """`key` is the hash of the first block, or of what there is of it; `hashes` are the published ones."""

    key: bytes
    hashes: tuple[bytes, ...]


def prompt_marks(chain: Chain, tokens: Sequence[int]) -> PromptMarks:
    """The marks under a chain (shared.hashing.chain): by model, adapter and salt. About 1 us a block of 16 tokens."""
    hashes = chain.hashes(tokens)
    return PromptMarks(hashes[0] if hashes else next_hash(chain.seed, tokens[:BLOCK_SIZE]), tuple(published(hashes)))
