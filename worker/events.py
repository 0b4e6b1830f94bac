"""What the engine tells its edge. A *stream* is an edge's number for one router's connection; (stream, handle) names a choice."""

from dataclasses import dataclass

from shared.types import Finished, Rejected, TokenDelta


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterStats:
    """Sequences of one adapter version. `idle_since`, of the engine's clock, is when the last of them ended; `ready` is whether it
    is in a device slot."""

    digest: bytes
    running: int
    waiting: int
    idle_since: float
    ready: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """A consistent view of the engine after a step. Times are seconds, counts are sequences, tokens or blocks of 16 tokens."""

    step_seq: int
    running: int
    waiting: int
    waiting_uncached_tokens: int
    context_tokens: int
    free_blocks: int
    total_blocks: int
    cached_blocks: int
    preemptions: int
    last_step_at: float  # time.monotonic() of the last retired step, or of the start
    prefill_tokens_per_s: float
    sequence_s: float = 0.0  # what one more running sequence adds to a decode step
    context_token_s: float = 0.0  # and one more token of context
    cold_admissions: int = 0  # requests that had to compute most of their prompt
    waiting_pairs: int = 0  # (query, key) pairs of the attention of waiting_uncached_tokens
    pair_s: float = 0.0  # what each takes
    adapters: tuple[AdapterStats, ...] = ()  # those in device slots, with sequences, or with some lately

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits."""
        return self.running + self.waiting > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KvChange:
    """Published prefix hashes that appeared and went, in order of first mention; none stands in both."""

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """What one call into the engine gave, each item with its stream. Of one choice: deltas come before its end."""

    deltas: tuple[tuple[int, TokenDelta], ...] = ()
    finished: tuple[tuple[int, Finished], ...] = ()
    rejected: tuple[tuple[int, Rejected], ...] = ()
    kv: KvChange = KvChange()
