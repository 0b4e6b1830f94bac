"""From logits to tokens: masks, penalties, bias, soft cap, log-probabilities, greedy and drawn tokens, random numbers."""

from collections.abc import Iterator

import torch

from kernels.logits.triton import Seen, bias_, logprobs, mask_, penalise_, softcap_, words
from kernels.sample import adjust
from kernels.sample.philox import uniform as reference_uniform
from kernels.sample.reference import Draw
from kernels.sample.reference import sample as reference_sample
from kernels.sample.triton import finite, greedy, sample, uniform
from tests.bench.gpu.bed import TOY_VOCABULARY, VOCABULARY, Bed, Row, Tensor, apart, close, same

_WORD = 32
_FILTERS: dict[str, dict[str, float]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "top_k, top_p, min_p": {"temperature": 1.3, "top_k": 200, "top_p": 0.8, "min_p": 0.001},
}
_STRAYS = 1 / 64  # of drawn tokens: where devices round exp() apart, a number between two tokens may fall to either


def check(bed: Bed) -> Iterator[Row]:
    """Each against its reference."""
    yield from (row for one in (_changes, _capped, _scores, _greedy, _random, _drawn) for row in one(bed))


def draws(bed: Bed, rows: int, **values: float) -> Draw:
    """How each of `rows` is drawn."""
    given = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **values}
    full = {
        name: torch.full((rows,), value, device=bed.device, dtype=torch.int64 if name == "top_k" else torch.float32)
        for name, value in given.items()
    }
    at = torch.arange(rows, device=bed.device)
    return Draw(**full, seed_low=at * 77, seed_high=at + 5, position=at * 1000, choice=at % 3)


def logits_of(bed: Bed, rows: int) -> Tensor:
    """Spread as a model's are, some tokens equal, NaN between the rows."""
    made = bed.drawn(rows, bed.size(TOY_VOCABULARY, VOCABULARY), dtype=torch.float32) * 3
    made[:, : made.shape[1] // 3].round_()
    return apart(made)


def seen_of(bed: Bed, rows: int, vocabulary: int) -> tuple[Seen, Tensor, Tensor]:
    """What `rows` sequences hold of ten tokens each, four of them their prompts'; those tokens, and their counts among outputs."""
    tokens = torch.stack([torch.randperm(vocabulary)[:10] for _ in range(rows)]).to(bed.device)
    prompts = torch.zeros(rows, words(vocabulary) * _WORD, dtype=torch.int64, device=bed.device)
    prompts.scatter_(1, tokens[:, :4], 1)
    counts = torch.zeros(rows, vocabulary, dtype=torch.int32, device=bed.device)
    counts.scatter_(1, tokens[:, 4:], 2)
    penalties = torch.tensor([1.3, 0.5, 0.25], device=bed.device).expand(rows, 3).contiguous()
    return Seen(counts=counts, prompts=packed(prompts), penalties=penalties), tokens, counts


def packed(allowed: Tensor) -> Tensor:
    """[rows, a multiple of 32] of 0 and 1 -> a bitmap int32 [rows, words]."""
    bits = allowed.view(len(allowed), -1, _WORD).long() << torch.arange(_WORD, device=allowed.device)
    return bits.sum(-1).to(torch.int32)


def _changes(bed: Bed) -> Iterator[Row]:
    logits = logits_of(bed, 4)
    vocabulary, want, rows = logits.shape[1], logits.clone(), torch.tensor([2, 0], device=bed.device)
    allowed = torch.rand(2, words(vocabulary) * _WORD, device=bed.device) < 0.5
    mask_(bed.free, logits, rows, packed(allowed))
    at = allowed[:, :vocabulary].nonzero()
    adjust.allow_only(want, rows, rows[at[:, 0]], at[:, 1])
    yield same("mask", "2 of 4 rows", logits, want)
    pairs = torch.tensor([[1, 1], [1, vocabulary - 1], [3, 1]], device=bed.device)
    values = torch.tensor([1.5, -2.0, 100.0], device=bed.device)
    bias_(bed.free, logits, pairs[:, 0], pairs[:, 1], values)
    adjust.add_bias(want, pairs[:, 0], pairs[:, 1], values)
    yield same("bias", "3 pairs", logits, want)
    seen, tokens, counts = seen_of(bed, 3, vocabulary)
    rows, entries = torch.tensor([3, 1], device=bed.device), torch.tensor([2, 0], device=bed.device)
    penalise_(bed.free, logits, rows, entries, seen)
    chosen = tokens[entries]
    adjust.penalise(want, rows, chosen, counts[entries[:, None], chosen], seen.penalties[entries])
    yield close("penalties", "2 of 4 rows", logits[[1, 3]], want[[1, 3]], torch.float32)


def _capped(bed: Bed) -> Iterator[Row]:
    logits = logits_of(bed, 3)
    want = 30.0 * torch.tanh(logits.double() / 30.0)
    softcap_(bed.free, logits, 30.0)
    yield close("soft cap", "3 rows", logits, want, torch.float32)


def _scores(bed: Bed) -> Iterator[Row]:
    logits = logits_of(bed, 3)
    tokens = torch.tensor([[0, 6, 2], [5, 0, 2], [logits.shape[1] - 1, 2, 5]], device=bed.device)
    got, normaliser = logprobs(bed.free, logits, tokens)
    exact = logits.double().log_softmax(-1)
    yield close("log-softmax gather", "3 tokens of 3 rows", got, exact.gather(1, tokens), torch.float32)
    yield close("log sum exp", "3 rows", normaliser, logits.double().logsumexp(-1), torch.float32)


def _greedy(bed: Bed) -> Iterator[Row]:
    logits = logits_of(bed, 5)
    logits[0, 3] = logits[0, 7] = 90.0
    logits[1, -1] = 90.0
    logits[2, 1:] = -torch.inf
    yield same(
        "greedy", "equal values, the last token, all but one forbidden", greedy(bed.free, logits), _lowest(logits)
    )
    whole = logits_of(bed, 4)
    for row, bad in enumerate((torch.nan, torch.inf, -torch.inf)):
        whole[row, -1] = bad
    yield same("finite", "NaN and infinities", finite(bed.free, whole), torch.tensor([False, False, False, True]))


def _lowest(logits: Tensor) -> Tensor:
    """The lowest of the most likely tokens."""
    at = torch.arange(logits.shape[1], device=logits.device)
    best = logits == logits.amax(-1, keepdim=True)
    return torch.where(best, at, logits.shape[1]).amin(-1)


def _random(bed: Bed) -> Iterator[Row]:
    draw = draws(bed, 500)
    want = reference_uniform((draw.seed_low, draw.seed_high), draw.position, draw.choice, 0)
    yield same("random numbers", "500", uniform(bed.free, draw), want)


def _drawn(bed: Bed) -> Iterator[Row]:
    """The reference's tokens for the same logits, computed on this device."""
    logits = logits_of(bed, bed.size(4, 64))
    logits[1:, 1::5] = -torch.inf
    for name, filters in _FILTERS.items():
        draw = draws(bed, len(logits), **filters)
        got, want = sample(bed.free, logits, draw), reference_sample(logits.clone(), draw)
        strays = float((got != want).double().mean())
        limit = 0.0 if bed.dry else _STRAYS
        yield {"kernel": "sample", "case": name, "off": strays, "limit": limit, "equal": strays <= limit}
