"""What chat and completion bodies have in common, and its translation. null means "not given", as for OpenAI."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from router.edge.bounds import MAX_PROMPT_TOKENS
from router.edge.http import refused
from router.request import MAX_STOP_TOKENS, MAX_STOPS, UINT64, GenerateRequest, Prompt, SamplingOptions
from router.tenancy.caller import Caller
from shared.errors import InvalidRequest
from shared.limits import MAX_ALLOWED, MAX_BAD_WORD, MAX_BAD_WORDS, MAX_BIASED

# A body may hold a million faults; the first one is enough.
FirstFault = Field(fail_fast=True)

# Lists are bounded here too, by what is more than any that could be right: the event loop waits for whatever is read.
Strings = Annotated[list[str], FirstFault, Field(max_length=MAX_STOPS)]
Integers = Annotated[list[int], FirstFault, Field(max_length=MAX_PROMPT_TOKENS)]
StopTokens = Annotated[list[int], FirstFault, Field(max_length=MAX_STOP_TOKENS)]
AllowedTokens = Annotated[list[int], FirstFault, Field(max_length=MAX_ALLOWED)]
Word = Annotated[
    str | Annotated[list[int], FirstFault, Field(max_length=MAX_BAD_WORD)], Field(union_mode="left_to_right")
]
Words = Annotated[list[Word], FirstFault, Field(max_length=2 * MAX_BAD_WORDS)]

_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "min_tokens",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
# What bodies call the parameters that the router's inside names otherwise.
NAMES = {"bad_word_strings": "bad_words"}

_TOKEN = re.compile("0|[1-9][0-9]{0,9}")


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = Field(None, description="End with a chunk that has no choices but the usage.")


class SamplingFields(BaseModel):
    """Fields that chat and completions share. Those that OpenAI's API does not have are marked as extensions."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = Field(None, description="A served name; may be left out where one model is served.")
    stream: bool | None = Field(None, description="Answer with server-sent events. Default false.")
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, description="Choices from one prefill, 1 to 64. Default 1.")
    temperature: float | None = Field(None, description="0 (greedy) to 2. Default 1.")
    top_p: float | None = Field(None, description="Above 0, to 1. Default 1.")
    seed: int | None = Field(
        None,
        description="64 bits; equal seeds give equal tokens. Drawn where not given.",
    )
    stop: Annotated[str | Strings | None, Field(union_mode="left_to_right")] = Field(
        None, description="Up to 16 strings that end the text, and are not part of it."
    )
    max_tokens: int | None = Field(None, description="The most tokens to generate for a choice.")
    top_k: int | None = Field(None, description="Extension. 0 or -1 is off. Default 0.")
    min_p: float | None = Field(None, description="Extension. 0 (off) to 1. Default 0.")
    min_tokens: int | None = Field(None, description="Extension. No stop token is sampled before. Default 0.")
    ignore_eos: bool | None = Field(None, description="Extension. Go on after the model's own end. Default false.")
    stop_token_ids: StopTokens | None = Field(None, description="Extension. Up to 64 further stop tokens.")
    presence_penalty: float | None = Field(None, description="-2 to 2. Default 0.")
    frequency_penalty: float | None = Field(None, description="-2 to 2. Default 0.")
    logit_bias: dict[str, float] | None = Field(
        None, description="Up to 1024 token ids, each with what is added to its logit, -100 to 100."
    )
    repetition_penalty: float | None = Field(None, description="Extension. Above 0, to 10. Default 1, which is off.")
    allowed_token_ids: AllowedTokens | None = Field(
        None, description="Extension. Up to 4096 tokens; no other is sampled."
    )
    bad_words: Words | None = Field(
        None, description="Extension. Up to 64 texts, or lists of token ids, that never stand whole in the output."
    )
    prompt_logprobs: int | None = Field(
        None,
        description="Extension. Log-probabilities of the prompt's tokens and of 0 to 20 alternatives. Not in streams.",
    )
    truncate_prompt_tokens: int | None = Field(
        None, description="Extension. Keep only so many of the prompt's tokens, the last ones."
    )

    cache_salt: str | None = Field(
        None,
        description="Extension. What is cached under it is found under it alone, and by this tenant alone. Up to 256 characters.",
    )
    prompt_cache_key: str | None = Field(
        None,
        description="Names what belongs together, for routers that place requests by session. Up to 256 characters.",
    )
    priority: int | None = Field(
        None, description="Extension. A class, 0 being the highest; bounded by, and by default, the tenant's."
    )

    def choices(self) -> int:
        """The number of choices a prompt."""
        return 1 if self.n is None else self.n

    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk. Raises InvalidRequest for stream_options without a stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequest("stream_options are for streams", param="stream_options")
        return bool(self.stream_options.include_usage)

    def check_prompt_logprobs(self) -> None:
        """Raises InvalidRequest where a stream asks for them: they come before its first token, and may be large."""
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs are not available in a stream", param="prompt_logprobs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a request brings beside its body."""

    caller: Caller
    request_id: str
    traceparent: str = ""


def sampling_of(
    body: SamplingFields, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingOptions:
    """The sampling options. Raises InvalidRequest naming what is out of range."""
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAME if getattr(body, name) is not None}
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    words = body.bad_words or []
    return SamplingOptions(
        **given,
        top_k=0 if body.top_k in (None, -1) else body.top_k,
        seed=_unsigned(body.seed),
        stop=tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=_biases(body.logit_bias or {}),
        allowed_token_ids=_allowed(body.allowed_token_ids),
        bad_words=tuple(tuple(word) for word in words if not isinstance(word, str)),
        bad_word_strings=tuple(word for word in words if isinstance(word, str)),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _biases(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_BIASED:
        raise InvalidRequest(f"logit_bias takes at most {MAX_BIASED} tokens", param="logit_bias")
    wrong = next((token for token in given if not _TOKEN.fullmatch(token)), None)
    if wrong is not None:
        raise InvalidRequest(f"logit_bias: {wrong[:50]!r} is not a token id", param="logit_bias")
    return tuple((int(token), value) for token, value in given.items())


def _allowed(given: Sequence[int] | None) -> tuple[int, ...]:
    """An empty list would allow nothing; inside, it stands for "all"."""
    if given is not None and not given:
        raise InvalidRequest("allowed_token_ids must not be empty", param="allowed_token_ids")
    return tuple(given or ())


def _unsigned(seed: int | None) -> int | None:
    """OpenAI's seeds are signed; the lower 64 bits are the seed."""
    return seed + UINT64 if seed is not None and -(UINT64 // 2) <= seed < 0 else seed


def request_of(
    body: SamplingFields, origin: Origin, prompt: Prompt, sampling: SamplingOptions, *, prompt_param: str
) -> GenerateRequest:
    """The validated request for one prompt. Raises InvalidRequest naming what is out of range or not served."""
    refused.check(body.model_extra, body.choices())
    return GenerateRequest(
        model=body.model or "",
        prompt=prompt,
        request_id=origin.request_id,
        caller=origin.caller,
        sampling=sampling,
        n=body.choices(),
        traceparent=origin.traceparent,
        prompt_param=prompt_param,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        cache_salt=body.cache_salt or "",
        priority=body.priority,
        prompt_cache_key=body.prompt_cache_key or "",
    )
