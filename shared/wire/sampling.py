"""How tokens are drawn, to and from the internal stream's SamplingSpec."""

from collections.abc import Iterator, Sequence

from protos import worker_pb2 as pb
from shared.types import Sampling


def sampling_to_pb(sampling: Sampling) -> pb.SamplingSpec:
    """Pairs and sequences as columns."""
    return pb.SamplingSpec(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_tokens=[token for token, _ in sampling.logit_bias],
        bias_values=[value for _, value in sampling.logit_bias],
        allowed_token_ids=sampling.allowed_token_ids,
        bad_word_tokens=[token for word in sampling.bad_words for token in word],
        bad_word_lengths=[len(word) for word in sampling.bad_words],
        prompt_logprobs=sampling.prompt_logprobs,
    )


def _words(tokens: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    start = 0
    for length in lengths:
        yield tuple(tokens[start : start + length])
        start += length


def sampling_from_pb(spec: pb.SamplingSpec) -> Sampling:
    """How tokens are drawn."""
    return Sampling(
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        min_p=spec.min_p,
        seed=spec.seed,
        max_tokens=spec.max_tokens,
        min_tokens=spec.min_tokens,
        stop_token_ids=tuple(spec.stop_token_ids),
        ignore_eos=spec.ignore_eos,
        logprobs=spec.logprobs if spec.HasField("logprobs") else None,
        presence_penalty=spec.presence_penalty,
        frequency_penalty=spec.frequency_penalty,
        repetition_penalty=spec.repetition_penalty or 1.0,
        logit_bias=tuple(zip(spec.bias_tokens, spec.bias_values, strict=True)),
        allowed_token_ids=tuple(spec.allowed_token_ids),
        bad_words=tuple(_words(spec.bad_word_tokens, spec.bad_word_lengths)),
        prompt_logprobs=spec.prompt_logprobs if spec.HasField("prompt_logprobs") else None,
    )
