"""What a request must be to run here at all. Routers check before; a worker trusts none of them."""

import math
from collections.abc import Iterator, Sequence

from shared.hashing import BLOCK_SIZE
from shared.limits import (
    MAX_ALLOWED,
    MAX_BAD_SEQUENCES,
    MAX_BAD_WORD,
    MAX_BIAS,
    MAX_BIASED,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION,
    MIN_REPETITION,
)
from shared.sampling import forbids_everything
from shared.types import RejectCode, Rejected, Sampling, TokenRequest
from worker.kvcache.cache import blocks_for
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.registry import Registry

Fault = tuple[str, str]  # parameter, message


def longest(spec: TokenRequest, config: SchedulerConfig) -> int:
    """The most tokens, prompt included, that a choice can ever have."""
    return min(len(spec.prompt_tokens) + spec.sampling.max_tokens, config.max_model_len)


def _stranger(tokens: Sequence[int], vocab_size: int) -> int | None:
    return next((token for token in tokens if not 0 <= token < vocab_size), None)


def _token_faults(spec: TokenRequest, vocab_size: int) -> Iterator[Fault]:
    sampling = spec.sampling
    lists = [("prompt_tokens", spec.prompt_tokens), ("stop_token_ids", sampling.stop_token_ids)]
    lists += [("choices.output_tokens", choice.output_tokens) for choice in spec.choices]
    lists += [("logit_bias", [token for token, _ in sampling.logit_bias])]
    lists += [("allowed_token_ids", sampling.allowed_token_ids)]
    lists += [("bad_words", word) for word in sampling.bad_words]
    for name, tokens in lists:
        if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
            yield name, f"{_stranger(tokens, vocab_size)} is no token id of this model (0 to {vocab_size - 1})"


def _choice_faults(spec: TokenRequest, stream: int, registry: Registry, config: SchedulerConfig) -> Iterator[Fault]:
    handles = [choice.handle for choice in spec.choices]
    indexes = [choice.index for choice in spec.choices]
    if not handles:
        yield "choices", "there must be at least one"
    if len(set(handles)) < len(handles):
        yield "choices.handle", "a handle stands for two choices"
    for handle in handles:
        if registry.has(stream, handle):
            yield "choices.handle", f"handle {handle} is in use on this stream"
    if len(set(indexes)) < len(indexes) or min(indexes, default=0) < 0:
        yield "choices.index", "indexes must be distinct and not negative"
    if not spec.resumed and any(choice.output_tokens for choice in spec.choices):
        yield "choices.output_tokens", "only a resumed request has outputs"
    fresh = sum(1 for choice in spec.choices if not choice.output_tokens)
    if fresh > config.max_running:
        yield "n", f"{fresh} choices run at once, and only {config.max_running} can"


def _sampling_faults(sampling: Sampling) -> Iterator[Fault]:
    if sampling.max_tokens < 1:
        yield "max_tokens", "must be at least 1"
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        yield "min_tokens", "must be at least 0 and at most max_tokens"
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        yield "temperature", "must be a number of at least 0"
    if not 0 < sampling.top_p <= 1:
        yield "top_p", "must be above 0 and at most 1"
    if not 0 <= sampling.min_p <= 1:
        yield "min_p", "must be at least 0 and at most 1"
    if sampling.top_k < 0:
        yield "top_k", "must not be negative"
    if not 0 <= sampling.seed < 1 << 64:
        yield "seed", "must have at most 64 bits"
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            yield name, f"must be at least 0 and at most {MAX_LOGPROBS}"


def _processor_faults(sampling: Sampling) -> Iterator[Fault]:
    """NaN is in no range."""
    for name, penalty in (
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ):
        if not -MAX_PENALTY <= penalty <= MAX_PENALTY:
            yield name, f"must be at least {-MAX_PENALTY:g} and at most {MAX_PENALTY:g}"
    if not MIN_REPETITION <= sampling.repetition_penalty <= MAX_REPETITION:
        yield "repetition_penalty", f"must be above 0 and at most {MAX_REPETITION:g}"
    bias = sampling.logit_bias
    if len(bias) > MAX_BIASED or len(dict(bias)) < len(bias):
        yield "logit_bias", f"must name at most {MAX_BIASED} tokens, each once"
    if not all(-MAX_BIAS <= value <= MAX_BIAS for _, value in bias):
        yield "logit_bias", f"must be at least {-MAX_BIAS:g} and at most {MAX_BIAS:g}"
    if len(sampling.allowed_token_ids) > MAX_ALLOWED:
        yield "allowed_token_ids", f"must be at most {MAX_ALLOWED}"
    words = sampling.bad_words
    if len(words) > MAX_BAD_SEQUENCES or not all(1 <= len(word) <= MAX_BAD_WORD for word in words):
        yield "bad_words", f"must be at most {MAX_BAD_SEQUENCES}, of 1 to {MAX_BAD_WORD} tokens each"


def _faults(spec: TokenRequest, stream: int, registry: Registry, config: SchedulerConfig) -> Iterator[Fault]:
    yield from _choice_faults(spec, stream, registry, config)
    if not spec.prompt_tokens:
        yield "prompt_tokens", "there must be at least one"
    yield from _token_faults(spec, config.vocab_size)
    yield from _sampling_faults(spec.sampling)
    yield from _processor_faults(spec.sampling)
    eos = () if spec.sampling.ignore_eos else config.eos_token_ids
    if forbids_everything(spec.sampling, (*eos, *spec.sampling.stop_token_ids)):
        yield "allowed_token_ids", "bad_words and min_tokens forbid all of them"
    if not (spec.tenant.weight > 0 and math.isfinite(spec.tenant.weight)):
        yield "tenant.weight", "must be above 0"
    if spec.tenant.top_class < 0:
        yield "tenant.priority", "must not be negative"


def _too_long(spec: TokenRequest, config: SchedulerConfig, num_blocks: int) -> str | None:
    prompt = len(spec.prompt_tokens)
    if prompt >= config.max_model_len:
        return f"the prompt has {prompt} tokens; the context is {config.max_model_len} tokens, output included"
    fresh = sum(1 for choice in spec.choices if not choice.output_tokens)
    copies = max(0, fresh - 1) if prompt % BLOCK_SIZE else 0
    needed = max(blocks_for(longest(spec, config) - 1), blocks_for(prompt) + copies)
    if needed <= num_blocks:
        return None
    return (
        f"a prompt of {prompt} tokens with up to {longest(spec, config) - prompt} of output and {len(spec.choices)} "
        f"choices needs {needed} KV blocks of {BLOCK_SIZE} tokens; {num_blocks} are available in all"
    )


def refusal(
    spec: TokenRequest, *, stream: int, registry: Registry, config: SchedulerConfig, num_blocks: int
) -> Rejected | None:
    """Why the request can never run here, or None."""
    if spec.adapter_digest and not config.max_adapters:
        message = "this worker serves no adapters"
        return Rejected(seq=spec.seq, code=RejectCode.ADAPTER_VERSION_UNAVAILABLE, message=message)
    for param, message in _faults(spec, stream, registry, config):
        return Rejected(seq=spec.seq, code=RejectCode.INVALID, message=f"{param}: {message}", param=param)
    too_long = _too_long(spec, config, num_blocks)
    if too_long is not None:
        return Rejected(seq=spec.seq, code=RejectCode.TOO_LONG, message=too_long, param="prompt_tokens")
    return None
