"""The one validated request that both edges produce, and what it yields. Nothing here knows HTTP, gRPC or a model.

A value that can never be right raises InvalidRequest naming the parameter, by the name that both APIs give it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from router.tenancy import salts
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.records import CLASSES
from shared.errors import InvalidRequest
from shared.limits import (
    MAX_ALLOWED,
    MAX_BAD_WORD,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_BIASED,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION,
    MIN_REPETITION,
)
from shared.types import Tenant

MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_STOP_TOKENS = 64
MAX_BAD_STRING = 256  # characters
MAX_CACHE_SALT = 256  # characters
MAX_CACHE_KEY = 256  # characters
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
    ok = value is None or low <= value <= high  # no NaN is
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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    bad_word_strings: tuple[str, ...] = ()
    prompt_logprobs: int | None = None

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
        _in_range(self.prompt_logprobs, 0, MAX_LOGPROBS, "prompt_logprobs")
        self._check_stops()
        self._check_penalties()
        self._check_tokens()
        self._check_bad_words()

    def _check_stops(self) -> None:
        _require(len(self.stop) <= MAX_STOPS, "stop", f"takes at most {MAX_STOPS} strings")
        _require(all(self.stop), "stop", "must not hold an empty string")
        longest = max(map(len, self.stop), default=0)
        _require(longest <= MAX_STOP_LENGTH, "stop", f"strings may be at most {MAX_STOP_LENGTH} characters long")
        _require(len(self.stop_token_ids) <= MAX_STOP_TOKENS, "stop_token_ids", f"takes at most {MAX_STOP_TOKENS} ids")
        _require(all(0 <= t < UINT32 for t in self.stop_token_ids), "stop_token_ids", "must be token ids")

    def _check_penalties(self) -> None:
        _in_range(self.presence_penalty, -MAX_PENALTY, MAX_PENALTY, "presence_penalty")
        _in_range(self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY, "frequency_penalty")
        _in_range(self.repetition_penalty, 0, MAX_REPETITION, "repetition_penalty")
        _require(self.repetition_penalty >= MIN_REPETITION, "repetition_penalty", "must be greater than 0")

    def _check_tokens(self) -> None:
        bias, allowed = self.logit_bias, self.allowed_token_ids
        _require(len(bias) <= MAX_BIASED, "logit_bias", f"takes at most {MAX_BIASED} tokens")
        _require(all(0 <= token < UINT32 for token, _ in bias), "logit_bias", "must name token ids")
        _require(len({token for token, _ in bias}) == len(bias), "logit_bias", "must name each token once")
        for _, value in bias:
            _in_range(value, -MAX_BIAS, MAX_BIAS, "logit_bias")
        _require(len(allowed) <= MAX_ALLOWED, "allowed_token_ids", f"takes at most {MAX_ALLOWED} ids")
        _require(all(0 <= token < UINT32 for token in allowed), "allowed_token_ids", "must be token ids")

    def _check_bad_words(self) -> None:
        words, strings = self.bad_words, self.bad_word_strings
        _require(len(words) <= MAX_BAD_WORDS, "bad_words", f"takes at most {MAX_BAD_WORDS} words")
        ok = all(1 <= len(word) <= MAX_BAD_WORD for word in words)
        _require(ok, "bad_words", f"must have 1 to {MAX_BAD_WORD} tokens each")
        _require(all(0 <= token < UINT32 for word in words for token in word), "bad_words", "must be token ids")
        _require(len(strings) <= MAX_BAD_WORDS, "bad_word_strings", f"takes at most {MAX_BAD_WORDS} strings")
        ok = all(1 <= len(string) <= MAX_BAD_STRING for string in strings)
        _require(ok, "bad_word_strings", f"must have 1 to {MAX_BAD_STRING} characters each")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """A request as both edges hand it over. `model` may be empty where one model is served; `timeout` is in seconds.

    `prompt_param` is the name that the caller's API gives its prompt (prompt, messages, ...), for errors about it.
    `echo` has each choice begin with the prompt's text, which is the edges' to write; with sampling.logprobs, the prompt's
    are worked out too. `truncate_prompt_tokens` keeps the last tokens of the prompt alone. `prompt_only` tells and counts no output
    (both APIs call that max_tokens 0; sampling.max_tokens is 1 then, because a worker's choice has at least one token).
    `cache_salt` keeps what is cached apart within the caller's own; `priority` is a class (0 is highest), bounded by the caller's.
    `prompt_cache_key` is the caller's name for what belongs together, for a placement policy that goes by it.
    """

    model: str
    prompt: Prompt
    request_id: str = ""
    caller: Caller = OPEN_CALLER
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    n: int = 1
    timeout: float | None = None
    traceparent: str = ""
    prompt_param: str = "prompt"
    echo: bool = False
    truncate_prompt_tokens: int | None = None
    prompt_only: bool = False
    cache_salt: str = ""
    priority: int | None = None
    prompt_cache_key: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first parameter that is out of range."""
        kept = self.truncate_prompt_tokens
        _require(kept is None or 1 <= kept < UINT32, "truncate_prompt_tokens", "must be from 1 to 2^32 - 1")
        _require(1 <= self.n <= MAX_CHOICES, "n", f"must be between 1 and {MAX_CHOICES}")
        _require(len(self.request_id) <= 256, "request_id", "may be at most 256 characters long")
        salted = len(self.cache_salt) <= MAX_CACHE_SALT
        _require(salted, "cache_salt", f"may be at most {MAX_CACHE_SALT} characters long")
        keyed = len(self.prompt_cache_key) <= MAX_CACHE_KEY
        _require(keyed, "prompt_cache_key", f"may be at most {MAX_CACHE_KEY} characters long")
        if isinstance(self.prompt, ChatPrompt):
            _require(bool(self.prompt.messages), self.prompt_param, "must not be empty")

    @property
    def tenant(self) -> Tenant:
        """Whom workers serve it for: the caller's tenant, with this request's salt and class, which is never above the tenant's."""
        tenant = self.caller.tenant
        top = tenant.top_class if self.priority is None else min(max(self.priority, tenant.top_class), CLASSES - 1)
        return replace(tenant, salt=salts.nested(tenant.salt, self.cache_salt), top_class=top)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenText:
    """One token as the caller sees it: its id, log-probability and own bytes (which need not be whole characters)."""

    token: int
    logprob: float
    text: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """One position: the token that stands there, sampled or the prompt's own, and the alternatives by descending log-probability."""

    sampled: TokenText
    top: tuple[TokenText, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRows:
    """The prompt's log-probabilities: the text of its first token, which follows nothing, and a row for each of the others."""

    first: str
    rows: tuple[Logprobs, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Why a choice ended: reason "stop" or "length", and the stop string or stop token that did it, if one did."""

    reason: str
    stop_string: str | None = None
    stop_token: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some of one choice. The texts of a choice's pieces, joined, are its text; `ended` is set in its last piece and only there.

    `echo` is the part of `text` that is the prompt's, and `prompt` its rows where they were asked: in the first piece alone.
    """

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    ended: Ended | None = None
    echo: str = ""
    prompt: PromptRows | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts of a whole request: `completion_tokens` over all choices, `cached_tokens` of the prompt."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
