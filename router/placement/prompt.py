"""What placement knows a prompt by: its first block, and the hashes that workers publish."""

from collections.abc import Sequence
from typing import NamedTuple

from shared.hashing import BLOCK_SIZE, block_hashes, next_hash, published


class PromptMarks(NamedTuple):
    """`key` is the hash of the first block, or of what there is of it; `hashes` are the published ones."""

    key: bytes
    hashes: tuple[bytes, ...]


def prompt_marks(seed: bytes, tokens: Sequence[int]) -> PromptMarks:
    """The marks under a chain's seed (shared.hashing.chain_seed): by model, adapter and salt. About 1 us a block of 16 tokens."""
    chain = tuple(block_hashes(seed, tokens))
    return PromptMarks(chain[0] if chain else next_hash(seed, tokens[:BLOCK_SIZE]), tuple(published(chain)))
