"""Tokens of busy streams go together, and everything that a reader is told is what it would be token by token."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router.request import Piece
from shared.types import TokenLogprobs
from tests.fakes import tiny_tokenizers
from tests.fakes.router import collect, request, running_router, text_of
from tests.fakes.scripted_worker import Conversation, ScriptedWorker, until

TOKENS = [ord(char) % 250 + 3 for char in "the quick brown fox jumps over the lazy dog" * 4]


def burst(conversation: Conversation, submit: Any) -> None:
    """A token a frame for each choice, with log-probabilities where they are asked, all frames at once."""
    conversation.load()
    asked = submit.sampling.HasField("logprobs")
    count = min(len(TOKENS), submit.sampling.max_tokens)
    for place in range(count):
        for choice in submit.choices:
            token = TOKENS[(place + choice.index) % len(TOKENS)]
            rows = [TokenLogprobs(sampled=-float(place), top=((token, -float(place)),))] if asked else []
            conversation.tokens(choice.handle, [token], acked=submit.seq, logprobs=rows)
    for choice in submit.choices:
        conversation.finish(choice.handle, count)


async def told(tmp_path: Path, coalesce: float, **asked: Any) -> tuple[list[Piece], Any]:
    async with (
        ScriptedWorker(script=burst, max_model_len=1_024) as worker,
        running_router(worker, tmp_path=tmp_path, coalesce=coalesce) as router,
    ):
        await router.ready()
        generation = await router.service.generate(request(seed=1, **asked))
        return await collect(generation), generation.usage


def whole(pieces: Sequence[Piece], index: int) -> tuple[str, list[int], list[Any], Any]:
    mine = [piece for piece in pieces if piece.index == index]
    rows = [row for piece in mine for row in piece.logprobs]
    assert [piece.ended is not None for piece in mine].index(True) == len(mine) - 1
    return text_of(mine, index), [token for piece in mine for token in piece.tokens], rows, mine[-1].ended


@pytest.mark.parametrize(
    "asked",
    [
        {"max_tokens": 150},
        {"max_tokens": 150, "logprobs": 1},
        {"max_tokens": 150, "n": 3},
        {"max_tokens": 150, "stop": ("jump",)},
        {"max_tokens": 1},
        {"max_tokens": 2},
    ],
)
async def test_together_or_token_by_token_a_reader_is_told_the_same(tmp_path: Path, asked: dict[str, Any]) -> None:
    together, usage = await told(tmp_path / "a", 0.02, **asked)
    apart, same_usage = await told(tmp_path / "b", 0.0, **asked)
    assert usage == same_usage
    for index in range(asked.get("n", 1)):
        assert whole(together, index) == whole(apart, index)


async def test_the_first_token_waits_for_nothing_and_what_follows_goes_together(tmp_path: Path) -> None:
    """With a pause that never ends, the first tokens of a stream are told, and the end brings all that was held."""
    async with (
        ScriptedWorker(max_model_len=1_024) as worker,
        running_router(worker, tmp_path=tmp_path, coalesce=3_600.0) as router,
    ):
        await router.ready()
        opening = asyncio.create_task(router.service.generate(request(max_tokens=50, ignore_eos=True)))
        (submit,) = await worker.submits()
        handle = submit.choices[0].handle
        worker.now.load()
        generation = await opening
        router.service._pace._not_before = float("inf")  # the last round took for ever
        reading, pieces = generation.__aiter__(), []
        worker.now.tokens(handle, TOKENS[:1])
        pieces += await asyncio.wait_for(anext(reading), 30)
        assert pieces[0].tokens == tuple(TOKENS[:1])
        for token in TOKENS[1:20]:
            worker.now.tokens(handle, [token])
        worker.now.finish(handle, 20)
        pieces += [piece async for flush in reading for piece in flush]
        assert [token for piece in pieces for token in piece.tokens] == TOKENS[:20]
        assert len(pieces) <= 3
        assert pieces[-1].ended is not None


async def test_what_was_held_when_a_worker_is_lost_is_told_and_given_to_the_next(tmp_path: Path) -> None:
    async with (
        ScriptedWorker(worker_id="a", max_model_len=1_024) as a,
        ScriptedWorker(worker_id="b", max_model_len=1_024) as b,
        running_router(a, b, tmp_path=tmp_path, coalesce=3_600.0, resume_wait=30.0) as router,
    ):
        await router.ready(workers=2)
        opening = asyncio.create_task(router.service.generate(request(max_tokens=50, ignore_eos=True)))
        first = await until(lambda: next((each for each in (a, b) if each.now.submits), None), "a submit")
        other = b if first is a else a
        first.now.load()
        generation = await opening
        router.service._pace._not_before = float("inf")
        for token in TOKENS[:10]:
            first.now.tokens(first.now.submits[0].choices[0].handle, [token])
        await until(lambda: len(generation._flight._held) == 9, "held tokens")
        first.now.drop()
        (resumed,) = await other.submits()
        assert list(resumed.choices[0].output_tokens) == TOKENS[:10]
        assert generation.usage.completion_tokens == 10
        await generation.aclose()


async def test_a_character_cut_by_tokens_and_by_rounds_comes_out_whole(tmp_path: Path) -> None:
    """Each token is a byte. Wherever a round cuts the bytes, no piece holds half of a character, and none is lost."""
    written = "é日😀ก"
    tokens = tiny_tokenizers.byte_level().encode(written).ids
    assert len(tokens) == len(written.encode())
    async with (
        ScriptedWorker(max_model_len=1_024) as worker,
        running_router(worker, tmp_path=tmp_path, coalesce=3_600.0) as router,
    ):
        await router.ready()
        for count, cut in enumerate(range(1, len(tokens) + 1), start=1):
            opening = asyncio.create_task(router.service.generate(request(max_tokens=50, ignore_eos=True)))
            submit = (await worker.submits(count))[-1]
            handle = submit.choices[0].handle
            worker.now.load()
            generation = await opening
            router.service._pace._not_before = float("inf")  # what is held waits for the test
            told = asyncio.create_task(collect(generation))
            for token in tokens[:cut]:
                worker.now.tokens(handle, [token])
            await until(lambda flight=generation._flight, held=cut - 1: len(flight._held) == held, "held tokens")
            generation._flight.settle()
            await asyncio.sleep(0)  # the reader takes what that told
            for token in tokens[cut:]:
                worker.now.tokens(handle, [token])
            worker.now.finish(handle, len(tokens))
            pieces = await asyncio.wait_for(told, 30)
            assert text_of(pieces) == written
            assert "�" not in "".join(piece.text for piece in pieces)
            assert [token for piece in pieces for token in piece.tokens] == tokens
