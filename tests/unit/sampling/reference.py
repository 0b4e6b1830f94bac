"""What sampling options mean, by plain loops in float64: the distribution that a token must be drawn from."""

import math
from collections import Counter
from collections.abc import Sequence

import torch

from shared.types import Sampling


def _ends(sampling: Sampling, eos: Sequence[int]) -> set[int]:
    return {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}


def forbidden(sampling: Sampling, outputs: Sequence[int], eos: Sequence[int], vocabulary: int) -> set[int]:
    """The tokens that may not be sampled after `outputs`."""
    allowed = set(sampling.allowed_token_ids) or set(range(vocabulary))
    banned = set(range(vocabulary)) - allowed
    for word in sampling.bad_words:
        *beginning, last = word
        if list(outputs[len(outputs) - len(beginning) :]) == beginning and len(beginning) <= len(outputs):
            banned.add(last)
    if len(outputs) < sampling.min_tokens:
        banned |= _ends(sampling, eos)
    return banned


def adjusted(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int], outputs: Sequence[int], eos: Sequence[int]
) -> list[float]:
    """The logits as they stand before temperature."""
    banned, bias = forbidden(sampling, outputs, eos, len(logits)), dict(sampling.logit_bias)
    counts, result = Counter(outputs), []
    for token, logit in enumerate(logits):
        value = logit + bias.get(token, 0.0)
        if token in prompt or token in counts:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        value -= sampling.presence_penalty * (token in counts) + sampling.frequency_penalty * counts[token]
        result.append(-math.inf if token in banned else value)
    return result


def distribution(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int], outputs: Sequence[int], eos: Sequence[int]
) -> torch.Tensor:
    """Probabilities, float64 [vocabulary]; logits without ties."""
    values = adjusted(logits, sampling, prompt, outputs, eos)
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(torch.tensor(values).argmax(), len(values)).double()
    p = (torch.tensor(values, dtype=torch.float64) / sampling.temperature).softmax(-1)
    order = [token for token in p.argsort(descending=True).tolist() if p[token] > 0]
    if 0 < sampling.top_k < len(order):
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        mass, reached, count = sum(p[token].item() for token in order), 0.0, 0
        while reached < sampling.top_p * mass:
            reached += p[order[count]].item()
            count += 1
        order = order[:count]
    order = [token for token in order if p[token] >= sampling.min_p * p[order[0]] * (1 - 1e-7)]
    kept = torch.zeros_like(p)
    kept[order] = p[order]
    return kept / kept.sum()
