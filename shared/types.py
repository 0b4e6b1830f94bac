"""The nouns that cross the wire between router and worker. All are immutable and already validated where they are made."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """Who a request is for. `salt` seeds the prefix cache's hashes; `top_class` is the highest priority class allowed (0 is highest).

    With `salt_from` above 0 the request's prompt begins with a public prefix of that many tokens, whole blocks, which are hashed without
    a salt; it counts from there on (shared.hashing.Chain).
    """

    id: str
    weight: float = 1.0
    salt: bytes = b""
    top_class: int = 0
    salt_from: int = 0


OPEN_TENANT = Tenant(id="open")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn, with every default resolved.

    `temperature` 0 is greedy; `top_k` 0 and `min_p` 0 and `top_p` 1 are off. `seed` is 64 bits wide. `max_tokens` and
    `min_tokens` count from the original prompt's end. `logprobs` is None (none) or the number of alternatives, 0 to 20;
    `prompt_logprobs` is the same for the prompt's tokens.

    `presence_penalty` and `frequency_penalty` (0 is off) look at outputs, `repetition_penalty` (1 is off) at prompt and
    outputs. `logit_bias` are (token, bias), each token once. `allowed_token_ids` is empty where all are. `bad_words` are
    token sequences. What each does, and in which order: worker.sampling.sampler.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    prompt_logprobs: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One choice of a request. `handle` is unique on its stream; `output_tokens` are given outputs of a resumed choice."""

    handle: int
    index: int
    output_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRequest:
    """What a router asks of a worker (the wire's Submit, whole). `seq` is strictly increasing on a stream.

    `adapter_digest` chooses the adapter's version, empty the base model; with `adapter_name` alone it is the version that the worker has
    under that name when the request comes.
    """

    seq: int
    request_id: str
    tenant: Tenant
    prompt_tokens: Sequence[int]
    choices: tuple[Choice, ...]
    sampling: Sampling
    adapter_digest: bytes = b""
    adapter_name: str = ""
    numerics_id: str = ""
    resumed: bool = False
    remaining_ms: int | None = None
    traceparent: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the token that stands there, and the `top` alternatives as (token, value), descending."""

    sampled: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLogprobs:
    """`rows` of a prompt's tokens from position `first` (at least 1: the first token follows nothing) on."""

    first: int
    rows: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDelta:
    """New tokens of one choice from one step. `logprobs` is empty, or one entry a token.

    `prompt` are rows of the request's prompt: in order and without gaps over all of its choices' deltas, each position once,
    the last of them not after the request's first token. A delta may have no tokens, and only those.
    """

    handle: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: PromptLogprobs | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDeltas:
    """All that one engine step gave one stream."""

    step_seq: int
    acked_seq: int
    deltas: tuple[TokenDelta, ...]


class FinishReason(Enum):
    """Why a worker ended a choice."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    DEADLINE = "deadline"
    ERROR = "error"


class AbortReason(Enum):
    """Why a router ends a choice early. After STOPPED the choice counts as finished by a stop string."""

    CLIENT = "client"
    STOPPED = "stopped"
    DEADLINE = "deadline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The end of one choice; nothing follows it. `output_tokens` counts from the original prompt's end; `message` is of an ERROR, and
    `param` the request's parameter where that is at fault."""

    handle: int
    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    stop_token: int | None = None
    message: str = ""
    preemptions: int = 0
    param: str = ""


class RejectCode(Enum):
    """Why a worker did not take a request. INVALID, TOO_LONG and ADAPTER_INVALID are final; the others may do elsewhere or later."""

    INVALID = "invalid"
    TOO_LONG = "too_long"
    QUEUE_FULL = "queue_full"
    DRAINING = "draining"
    ADAPTER_VERSION_UNAVAILABLE = "adapter_version_unavailable"
    NUMERICS = "numerics"
    ADAPTER_UNKNOWN = "adapter_unknown"
    ADAPTER_INVALID = "adapter_invalid"
    ADAPTER_MEMORY = "adapter_memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A request that was not taken, with all its choices."""

    seq: int
    code: RejectCode
    message: str
    param: str = ""
    retry_after_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterLoad:
    """Requests of one adapter version. `idle_ms` is the time since the last of them ended, 0 while any is there."""

    digest: bytes
    running: int
    waiting: int
    idle_ms: int


class AdapterLevel(Enum):
    """How near an adapter is to being used: at its source, in host memory, in a device slot."""

    SOURCE = "source"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterInfo:
    """One name of a worker's catalog and the version under it.

    `digest` is empty until it has been read. `rank` is the largest of its modules, `bytes` what it takes of host memory.
    `loaded_unix_ms` is when this version came under this name, `error` why the last attempt to have it failed. `listed` ones were found in
    the adapter directory, the others loaded by a call.
    """

    name: str
    digest: bytes = b""
    level: AdapterLevel = AdapterLevel.SOURCE
    rank: int = 0
    bytes: int = 0
    pinned: bool = False
    loaded_unix_ms: int = 0
    error: str = ""
    source: str = ""
    listed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterState:
    """Entries of a worker's catalog that are new or changed, and names that went. A `complete` one ends the whole view that a stream
    begins with."""

    entries: tuple[AdapterInfo, ...] = ()
    removed: tuple[str, ...] = ()
    complete: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A worker's account of itself. `credits` is the number of Submits that this stream may have in flight beyond `acked_seq`.

    `predicted_step_ms` is what the step that runs now was expected to take, `prefill_tokens_per_s` the rate of a step that does nothing
    else. `step_us_per_sequence` and `step_us_per_context_token` are what a decode step takes longer for one more of each.
    `waiting_uncached_tokens` are prompt tokens not computed yet, in the queue and of requests that run, `waiting_pairs` the (query, key)
    pairs of their attention, each of which takes `step_us_per_pair`. `cold_admissions` counts requests,
    since the start, of whose prompts most was not cached when they were first admitted. `adapters` are those that have work or had some
    lately.
    """

    step_seq: int
    acked_seq: int
    running: int
    waiting: int
    waiting_uncached_tokens: int
    context_tokens: int
    free_blocks: int
    total_blocks: int
    has_work: bool
    last_step_age_ms: int
    predicted_step_ms: float
    prefill_tokens_per_s: float
    credits: int
    draining: bool = False
    step_us_per_sequence: float = 0.0
    step_us_per_context_token: float = 0.0
    cold_admissions: int = 0
    adapters: tuple[AdapterLoad, ...] = ()
    waiting_pairs: int = 0
    step_us_per_pair: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """What a worker is. (model, model_revision, tokenizer_digest) names its pool; `worker_id` is new with each start.

    `max_adapters` are its device slots, 0 where it serves none.
    """

    worker_id: str
    model: str
    model_revision: str
    tokenizer_digest: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    block_size: int
    total_blocks: int
    max_running: int
    eos_token_ids: tuple[int, ...]
    version: str
    max_adapters: int = 0
    max_adapter_rank: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KvDelta:
    """Published prefix hashes (16 bytes each) that appeared and went. `sequence` grows by one a delta within an `epoch`."""

    epoch: int
    sequence: int
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class KvSnapshot:
    """One piece of a whole view of the published hashes, valid as of `sequence`; `last` ends it."""

    epoch: int
    sequence: int
    hashes: tuple[bytes, ...]
    last: bool
