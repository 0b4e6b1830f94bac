"""Beam search judged by transformers: the same sequences and scores, as an algorithm alone and through the whole stack."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import octavo
from octavo.client.beam.rounds import BeamResult
from octavo.client.beam.search import BeamSearch, BeamSettings, EarlyStopping
from shared.errors import ContextLengthExceeded, DeadlineExceeded, InvalidRequest, ModelNotFound
from tests.e2e.stack import RunningStack, until_at_rest
from tests.fakes.tiny_models import EOS

PROMPTS = ((17, 300, 45, 9, 411, 68, 250), tuple(range(40, 75)))
MAX_TOKENS = 9
KINDS = tuple(itertools.product((2, 3, 8), (0.0, 1.0, 2.0, -0.5), (True, False, "never")))


@pytest.fixture(scope="module")
def judge(tiny_model: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.eval()
    return model


def following(
    model: Any, prompt: Sequence[int], beams: Sequence[tuple[int, ...]], most: int
) -> list[Mapping[int, float]]:
    """The likeliest tokens after each beam, by one forward."""
    with torch.inference_mode():
        rows = torch.tensor([[*prompt, *beam] for beam in beams])
        top = model(rows).logits[:, -1].log_softmax(-1).topk(most)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [dict(zip(tokens, values, strict=True)) for tokens, values in pairs]


def likely(model: Any, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """Tokens on which some of the best continuations end: as ids that end a sequence they matter."""
    search = BeamSearch(settings=BeamSettings(num_beams=8, max_tokens=4))
    while search.running:
        search.advance(following(model, prompt, [beam.tokens for beam in search.running], 20))
    return tuple(dict.fromkeys(one.tokens[-1] for one in search.finished))[:count]


def judged(model: Any, prompt: Sequence[int], settings: BeamSettings) -> list[tuple[tuple[int, ...], float]]:
    """What transformers finds: tokens after the prompt without padding, and scores."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=settings.num_beams,
            num_return_sequences=settings.num_beams,
            max_new_tokens=settings.max_tokens,
            length_penalty=settings.length_penalty,
            early_stopping=settings.early_stopping,
            eos_token_id=list(settings.eos_token_ids) or [-1],
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    rows = [unpadded(row[len(prompt) :], settings.eos_token_ids) for row in out.sequences.tolist()]
    return list(zip(rows, out.sequences_scores.tolist(), strict=True))


def unpadded(tokens: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    """Up to the first token that ends a sequence."""
    end = next((i for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tuple(tokens[: end + 1])


def assert_equal(
    found: Sequence[tuple[tuple[int, ...], float]], wanted: Sequence[tuple[tuple[int, ...], float]]
) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "long"])
@pytest.mark.parametrize("ends", [0, 1, 3])
def test_the_search_finds_what_transformers_finds(judge: Any, prompt: tuple[int, ...], ends: int) -> None:
    eos = likely(judge, prompt, ends)
    lengths: set[int] = set()
    for num_beams, length_penalty, early_stopping in KINDS:
        settings = BeamSettings(
            num_beams=num_beams,
            max_tokens=MAX_TOKENS,
            length_penalty=length_penalty,
            early_stopping=early_stopping,  # type: ignore[arg-type]
            eos_token_ids=eos,
        )
        search = BeamSearch(settings=settings)
        while search.running:
            beams = [beam.tokens for beam in search.running]
            search.advance(following(judge, prompt, beams, settings.alternatives))
        found = [(one.tokens, one.score) for one in search.finished]
        assert_equal(found, judged(judge, prompt, settings))
        lengths.update(len(tokens) for tokens, _ in found)
    assert MAX_TOKENS in lengths
    assert bool(ends) == (len(lengths) > 1)  # the cases do end in both ways


def through(stack: RunningStack, prompt: Sequence[int], settings: BeamSettings, *, blocking: bool) -> BeamResult:
    """The same search as a client's."""
    said: dict[str, Any] = {
        "num_beams": settings.num_beams,
        "max_tokens": settings.max_tokens,
        "length_penalty": settings.length_penalty,
        "early_stopping": settings.early_stopping,
        "eos_token_ids": settings.eos_token_ids,
    }
    if blocking:
        with octavo.Client(stack.grpc, timeout=60) as client:
            return client.beam_search(prompt, **said)

    async def ask() -> BeamResult:
        async with octavo.AsyncClient(stack.grpc, timeout=60) as client:
            return await client.beam_search(prompt, **said)

    return asyncio.run(ask())


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_a_client_finds_what_transformers_finds(
    stack: RunningStack, judge: Any, early_stopping: EarlyStopping, blocking: bool
) -> None:
    for prompt, ends, length_penalty in zip(PROMPTS, (0, 3), (1.0, 0.6), strict=True):
        settings = BeamSettings(
            num_beams=4,
            max_tokens=MAX_TOKENS,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_ids=likely(judge, prompt, ends),
        )
        result = through(stack, prompt, settings, blocking=blocking)
        assert_equal([(beam.tokens, beam.score) for beam in result.beams], judged(judge, prompt, settings))
        for beam in result.beams:
            stopped = beam.tokens[-1] in settings.eos_token_ids
            assert (beam.finish_reason, stopped or len(beam.tokens) == MAX_TOKENS) == (
                "stop" if stopped else "length",
                True,
            )
            assert beam.score == pytest.approx(beam.logprob / len(beam.tokens) ** length_penalty)


def test_text_and_chats_are_searched_with_the_models_own_tokens_and_ends(stack: RunningStack) -> None:
    with octavo.Client(stack.grpc, timeout=60) as client:
        assert client.models()[0].eos_token_ids == (EOS,)
        text = client.beam_search("Once upon a time", num_beams=3, max_tokens=5, num_return=2)
        assert text.prompt_tokens == client.tokenize("Once upon a time")
        assert len(text.beams) == 2
        assert text.beams[0].score >= text.beams[1].score
        again = client.beam_search(text.prompt_tokens, num_beams=3, max_tokens=5, num_return=2)
        assert again == text
        shown = [token for token in text.beams[0].tokens if token != EOS]
        assert client.detokenize([*text.prompt_tokens, *shown]) == "Once upon a time" + text.beams[0].text
        turns = [{"role": "user", "content": "Hello"}]
        chat = client.beam_search(turns, num_beams=2, max_tokens=3)
        assert chat.prompt_tokens == client.tokenize(turns)


@pytest.mark.parametrize(
    ("options", "kind", "param"),
    [
        ({"num_beams": 20}, InvalidRequest, "num_beams"),
        ({"num_beams": 0}, InvalidRequest, "num_beams"),
        ({"num_return": 5}, InvalidRequest, "num_return"),
        ({"max_tokens": 0}, InvalidRequest, "max_tokens"),
        ({"max_tokens": 510}, ContextLengthExceeded, "max_tokens"),
        ({"length_penalty": float("nan")}, InvalidRequest, "length_penalty"),
        ({"early_stopping": "soon"}, InvalidRequest, "early_stopping"),
        ({"prompt": [1 << 20]}, InvalidRequest, "prompt_tokens"),
        ({"prompt": []}, InvalidRequest, "prompt"),
        ({"model": "none"}, ModelNotFound, "model"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(
    stack: RunningStack, options: dict[str, Any], kind: type[Exception], param: str
) -> None:
    with octavo.Client(stack.grpc, timeout=60) as client, pytest.raises(kind) as refused:
        client.beam_search(**{"prompt": PROMPTS[0], **options})
    assert getattr(refused.value, "param", None) == param


def test_a_search_whose_time_runs_out_leaves_nothing_running(stack: RunningStack) -> None:
    with octavo.Client(stack.grpc) as client, pytest.raises(DeadlineExceeded):
        client.beam_search(PROMPTS[1], num_beams=8, max_tokens=400, timeout=0.5)
    for address in stack.workers:
        until_at_rest(address)
