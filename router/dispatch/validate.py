"""A request against its model: what can be known before any worker sees it. Every refusal names the parameter at fault."""

import secrets
from collections.abc import Iterable, Sequence
from itertools import chain

from router.fleet.fleet import Pool
from router.request import ChatPrompt, GenerateRequest, SamplingOptions
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.limits import MAX_BAD_WORD
from shared.sampling import forbids_everything
from shared.types import Sampling

COMPLETION_TOKENS = 16  # max_tokens of a completion that does not say it, as OpenAI's API


def check_prompt(prompt: Sequence[int], pool: Pool, param: str) -> None:
    """Raises InvalidRequest or ContextLengthExceeded naming `param`."""
    if not prompt:
        raise InvalidRequest(f"{param} must hold at least one token", param=param)
    if len(prompt) >= pool.max_model_len:
        raise ContextLengthExceeded(
            f"{param} has {len(prompt)} tokens; this model's context is {pool.max_model_len} tokens, output included",
            param=param,
        )
    for wrong in (min(prompt), max(prompt)):
        if not 0 <= wrong < pool.vocab_size:
            message = f"{param} holds {wrong}, which is no token id of this model (0 to {pool.vocab_size - 1})"
            raise InvalidRequest(message, param=param)


def _max_tokens(request: GenerateRequest, room: int, prompt_len: int) -> int:
    """The most tokens of a choice, where `room` are left in the context."""
    said = request.sampling.max_tokens
    if said is None:
        return room if isinstance(request.prompt, ChatPrompt) else min(COMPLETION_TOKENS, room)
    if said > room:
        raise ContextLengthExceeded(
            f"max_tokens is {said}, and the prompt has {prompt_len} tokens; "
            f"this model's context is {prompt_len + room} tokens",
            param="max_tokens",
        )
    return said


def _check_tokens(options: SamplingOptions, vocab_size: int) -> None:
    """Raises InvalidRequest naming the first parameter that holds what is no token of this model."""
    lists: tuple[tuple[str, Iterable[int]], ...] = (
        ("stop_token_ids", options.stop_token_ids),
        ("logit_bias", (token for token, _ in options.logit_bias)),
        ("allowed_token_ids", options.allowed_token_ids),
        ("bad_words", chain.from_iterable(options.bad_words)),
    )
    for param, tokens in lists:
        wrong = next((token for token in tokens if token >= vocab_size), None)
        if wrong is not None:
            message = f"{param} holds {wrong}, no token id of this model (0 to {vocab_size - 1})"
            raise InvalidRequest(message, param=param)


def bad_words(given: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """`given`, the tokens of bad_word_strings. Raises InvalidRequest where one has more tokens than a bad word may."""
    if any(len(word) > MAX_BAD_WORD for word in given):
        message = f"bad_word_strings must have at most {MAX_BAD_WORD} tokens each"
        raise InvalidRequest(message, param="bad_word_strings")
    return given


def resolve_sampling(
    request: GenerateRequest, prompt: Sequence[int], pool: Pool, more_bad_words: tuple[tuple[int, ...], ...] = ()
) -> Sampling:
    """Every default resolved, the seed drawn where none is given; `more_bad_words` are those given as text.

    Raises InvalidRequest naming the parameter.
    """
    options = request.sampling
    max_tokens = _max_tokens(request, pool.max_model_len - len(prompt), len(prompt))
    if options.min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens must not be larger than max_tokens ({max_tokens})", param="min_tokens")
    _check_tokens(options, pool.vocab_size)
    sampling = _sampling(request, max_tokens, more_bad_words)
    if forbids_everything(sampling, stop_tokens(request, pool)):
        message = "allowed_token_ids leaves nothing: bad_words and min_tokens forbid all of them"
        raise InvalidRequest(message, param="allowed_token_ids")
    return sampling


def _sampling(request: GenerateRequest, max_tokens: int, more_bad_words: tuple[tuple[int, ...], ...]) -> Sampling:
    options = request.sampling
    return Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=secrets.randbits(64) if options.seed is None else options.seed,
        max_tokens=max_tokens,
        min_tokens=options.min_tokens,
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repetition_penalty,
        logit_bias=options.logit_bias,
        allowed_token_ids=options.allowed_token_ids,
        bad_words=tuple(dict.fromkeys((*options.bad_words, *more_bad_words))),
        prompt_logprobs=_prompt_logprobs(request),
    )


def _prompt_logprobs(request: GenerateRequest) -> int | None:
    """As asked, or what an echo with logprobs shows of the prompt."""
    asked = request.sampling.prompt_logprobs
    return request.sampling.logprobs if asked is None and request.echo else asked


def stop_tokens(request: GenerateRequest, pool: Pool) -> frozenset[int]:
    """The tokens at which a worker ends a choice."""
    own = () if request.sampling.ignore_eos else pool.eos_token_ids
    return frozenset((*own, *request.sampling.stop_token_ids))
