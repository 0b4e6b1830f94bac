"""The one validated request that both edges produce, and what it yields. Nothing here knows HTTP, gRPC or a model.

A value that can never be right raises InvalidRequest naming the parameter, by the name that both APIs give it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.errors import InvalidRequest
from shared.types import OPEN_TENANT, Tenant

MAX_CHOICES = 64
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_STOP_TOKENS = 64
UINT32 = 2**32
UINT64 = 2**64


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPrompt:
    """Text, tokenized with the model's special tokens."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    tokens: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the model's own template."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True


Prompt = TextPrompt | TokenPrompt | ChatPrompt


def _require(ok: bool, param: str, message: str) -> None:
    if not ok:
        raise InvalidRequest(f"{param} {message}", param=param)


def _in_range(value: float | None, low: float, high: float, param: str) -> None:
    ok = value is None or (math.isfinite(value) and low <= value <= high)
    _require(ok, param, f"must be between {low:g} and {high:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingOptions:
    """What the caller said of sampling; None is "not said". See Sampling in protos/inference.proto for meanings and ranges."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first parameter that is out of range."""
        _in_range(self.temperature, 0, 2, "temperature")
        _in_range(self.top_p, 0, 1, "top_p")
        _require(self.top_p > 0, "top_p", "must be greater than 0")
        _in_range(self.min_p, 0, 1, "min_p")
        _require(0 <= self.top_k < UINT32, "top_k", "must be from 0 (off) to 2^32 - 1")
        _require(self.seed is None or 0 <= self.seed < UINT64, "seed", "must be an integer from 0 to 2^64 - 1")
        _require(self.max_tokens is None or 1 <= self.max_tokens < UINT32, "max_tokens", "must be from 1 to 2^32 - 1")
        _require(0 <= self.min_tokens < UINT32, "min_tokens", "must be from 0 to 2^32 - 1")
        _require(self.min_tokens <= (self.max_tokens or UINT32), "min_tokens", "must not be larger than max_tokens")
        _in_range(self.logprobs, 0, MAX_LOGPROBS, "logprobs")
        self._check_stops()

    def _check_stops(self) -> None:
        _require(len(self.stop) <= MAX_STOPS, "stop", f"takes at most {MAX_STOPS} strings")
        _require(all(self.stop), "stop", "must not hold an empty string")
        longest = max(map(len, self.stop), default=0)
        _require(longest <= MAX_STOP_LENGTH, "stop", f"strings may be {MAX_STOP_LENGTH} characters long")
        _require(len(self.stop_token_ids) <= MAX_STOP_TOKENS, "stop_token_ids", f"takes at most {MAX_STOP_TOKENS} ids")
        _require(all(0 <= t < UINT32 for t in self.stop_token_ids), "stop_token_ids", "must be token ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """A request as both edges hand it over. `model` may be empty where one model is served; `timeout` is in seconds.

    `prompt_param` is the name that the caller's API gives its prompt (prompt, messages, ...), for errors about it.
    """

    model: str
    prompt: Prompt
    request_id: str = ""
    tenant: Tenant = OPEN_TENANT
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    n: int = 1
    timeout: float | None = None
    traceparent: str = ""
    prompt_param: str = "prompt"

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first parameter that is out of range."""
        _require(1 <= self.n <= MAX_CHOICES, "n", f"must be between 1 and {MAX_CHOICES}")
        _require(len(self.request_id) <= 256, "request_id", "may be 256 characters long")
        if isinstance(self.prompt, ChatPrompt):
            _require(bool(self.prompt.messages), self.prompt_param, "must not be empty")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenText:
    """One token as the caller sees it: its id, log-probability and own bytes (which need not be whole characters)."""

    token: int
    logprob: float
    text: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """One output position: the sampled token, and the alternatives by descending log-probability."""

    sampled: TokenText
    top: tuple[TokenText, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Why a choice ended: reason "stop" or "length", and the stop string or stop token that did it, if one did."""

    reason: str
    stop_string: str | None = None
    stop_token: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some of one choice. The texts of a choice's pieces, joined, are its text; `ended` is set in its last piece and only there."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    ended: Ended | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts of a whole request: `completion_tokens` over all choices, `cached_tokens` of the prompt."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
