"""What a policy sees: the workers that could take a request now, and the request. A policy is a pure function of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple, Protocol

from shared.types import Load, WorkerInfo

NOTHING: Mapping[str, int] = MappingProxyType({})
ASSUMED_RATE = 1_000.0  # tokens a second of a worker that has measured nothing


class AdapterUse(NamedTuple):
    """What a worker says of one adapter. `ready` means that a step can use it now; `idle_s` counts from its last use."""

    running: int
    waiting: int
    idle_s: float
    ready: bool


class Share(NamedTuple):
    """What a dispatch adds to its worker until the worker's own report covers it. `cold`: most of its prompt is not cached there."""

    choices: int
    uncached: int = 0
    context: int = 0
    cold: int = 0
    pairs: int = 0


@dataclass(kw_only=True, slots=True)
class WorkerView:
    """One worker that takes work and has credit for this router. Nobody changes one: it is kept for many decisions, and is not frozen only
    because that would make it three times as long in the making.

    `running`, `waiting`, `uncached` (prompt tokens not computed yet), `pairs` (of query and key, in their attention), `context` (tokens
    of all that runs), `free_blocks` and `cold` (requests that had to compute most of their prompt, ever) are the worker's last report.
    `pending` is what this router sent that the report cannot know of. `dispatched` counts this router's requests to it, as a newcomer
    beginning at the least of its pool.
    `prefill_rate` is in tokens a second, 0 where unknown, and `pair_s` what a pair takes beyond it; `sequence_s` and `context_s` are what
    one more sequence, or one more token of context, adds to a decode step. `adapter_load_s` is how long an adapter takes to be ready.

    What follows from these for any request is worked out once: `rate` is `prefill_rate` or what is assumed for it, `before_s` how long the
    prompts that are there take until they are computed, `decode_s` what the sequences that are there add to a step, both with `pending`.
    """

    worker_id: str
    running: int
    waiting: int
    pending: Share
    max_running: int
    dispatched: int
    uncached: int = 0
    context: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    cold: int = 0
    pairs: int = 0
    prefill_rate: float = 0.0
    pair_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0
    adapters: Mapping[bytes, AdapterUse] = field(default_factory=lambda: MappingProxyType({}))
    adapter_load_s: float = 1.0
    rate: float = field(init=False)
    before_s: float = field(init=False)
    decode_s: float = field(init=False)

    def __post_init__(self) -> None:
        pending, rate = self.pending, self.prefill_rate or ASSUMED_RATE
        self.rate = rate
        self.before_s = (self.uncached + pending.uncached) / rate + self.pair_s * (self.pairs + pending.pairs)
        sequences = self.running + self.waiting + pending.choices
        self.decode_s = self.sequence_s * sequences + self.context_s * (self.context + pending.context)


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """What is placed.

    `key` stands for the prompt's first block: equal beginnings have equal keys. `hashes` are the prompt's published hashes, and `cached`
    the prompt tokens that each worker has, where it has any. `outputs` is how many tokens a choice is expected to give. `adapter` is a
    digest, empty for the base model; `session` is the caller's own name for what belongs together, where it gave one.
    """

    key: bytes
    prompt_tokens: int
    choices: int
    hashes: Sequence[bytes] = ()
    cached: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    outputs: float = 0.0
    adapter: bytes = b""
    session: bytes = b""

    def uncached(self, worker_id: str) -> int:
        """Prompt tokens that this worker would have to compute. The last is always computed."""
        return max(1, self.prompt_tokens - self.cached.get(worker_id, 0))

    def share(self, worker_id: str) -> Share:
        """What it adds to this worker."""
        uncached = self.uncached(worker_id)
        cold = int(2 * uncached > self.prompt_tokens)
        return Share(self.choices, uncached, self.prompt_tokens * self.choices, cold, self.pairs(worker_id))

    def pairs(self, worker_id: str) -> int:
        """(query, key) pairs of their attention: of all positions that this worker computes with all before them."""
        uncached = self.uncached(worker_id)
        return uncached * (2 * self.prompt_tokens - uncached) // 2


class Policy(Protocol):
    """Chooses a worker."""

    def __call__(self, workers: Sequence[WorkerView], want: Want) -> str:
        """The worker_id of one of `workers`, which are not empty. The same arguments, in any order, give the same answer."""


def view_of(info: WorkerInfo, load: Load, *, pending: Share, dispatched: int) -> WorkerView:
    """A worker by its own report and what this router knows beside it."""
    return WorkerView(
        worker_id=info.worker_id,
        running=load.running,
        waiting=load.waiting,
        pending=pending,
        max_running=info.max_running,
        dispatched=dispatched,
        uncached=load.waiting_uncached_tokens,
        context=load.context_tokens,
        free_blocks=load.free_blocks,
        total_blocks=load.total_blocks,
        cold=load.cold_admissions,
        pairs=load.waiting_pairs,
        prefill_rate=load.prefill_tokens_per_s,
        pair_s=load.step_us_per_pair / 1e6,
        sequence_s=load.step_us_per_sequence / 1e6,
        context_s=load.step_us_per_context_token / 1e6,
    )


def rendezvous(key: bytes, worker_id: str) -> int:
    """The weight of a worker for a key; the largest wins (Thaler and Ravishankar, 1998)."""
    return int.from_bytes(blake2b(worker_id.encode(), digest_size=8, key=key).digest(), "little")
