"""What a policy sees: the workers that could take a request now, and the request. A policy is a pure function of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from shared.hashing import BLOCK_SIZE, token_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerView:
    """One worker that takes work and has credit for this router.

    `running` and `waiting` are choices by the worker's last report; `pending` are choices that this router sent it and that the report
    cannot know of yet; `dispatched` counts this router's requests to it, as a newcomer beginning at the least of its pool.
    """

    worker_id: str
    running: int
    waiting: int
    pending: int
    max_running: int
    dispatched: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """What is placed. `key` stands for the prompt's first block: equal beginnings have equal keys."""

    key: bytes
    prompt_tokens: int
    choices: int


class Policy(Protocol):
    """Chooses a worker."""

    def __call__(self, workers: Sequence[WorkerView], want: Want) -> str:
        """The worker_id of one of `workers`, which are not empty. The same arguments, in any order, give the same answer."""


def prompt_key(tokens: Sequence[int]) -> bytes:
    """The key of a prompt, over its first block's token ids."""
    return blake2b(token_bytes(tokens[:BLOCK_SIZE]), digest_size=16).digest()


def rendezvous(key: bytes, worker_id: str) -> int:
    """The weight of a worker for a key; the largest wins (Thaler and Ravishankar, 1998)."""
    return int.from_bytes(blake2b(worker_id.encode(), digest_size=8, key=key).digest(), "little")
