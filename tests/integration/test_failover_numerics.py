"""Workers whose numbers are not those that they told: given outputs go elsewhere, or on there and say so."""

import asyncio
from typing import Any

import pytest

from shared import errors
from shared.types import RejectCode
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, until


async def begun_at(first: ScriptedWorker, router: Router, *others: ScriptedWorker) -> Any:
    """A stream with a token of the first worker; the others have no room meanwhile, and keep none."""
    for other in others:
        other.now.load(credits=0)
    links = router.service._fleet.links
    await until(lambda: sum(link.view(0) is not None for link in links) == 1, "one worker alone")
    task = asyncio.create_task(router.service.generate(request(20, 21, 22, max_tokens=3)))
    first.now.tokens((await first.submits())[0].choices[0].handle, [20])
    return await task


def unlike(conversation, submit) -> None:
    """A worker whose numbers are not those that it told."""
    if submit.numerics_id:
        conversation.load()
        conversation.reject(submit.seq, RejectCode.NUMERICS)
    else:
        conversation.load()
        conversation.tokens(submit.choices[0].handle, [31, 32])
        conversation.finish(submit.choices[0].handle, 3)


def alike(conversation, submit) -> None:
    conversation.load()
    conversation.tokens(submit.choices[0].handle, [21, 22])
    conversation.finish(submit.choices[0].handle, 3)


async def test_a_worker_that_denies_its_numerics_is_passed_over_for_one_that_has_them(tmp_path):
    first, liar, true = ScriptedWorker(worker_id="a"), ScriptedWorker(worker_id="b"), ScriptedWorker(worker_id="c")
    async with first, liar, true:
        async with running_router(first, liar, true, tmp_path=tmp_path, resume_wait=60.0) as router:
            await router.ready(workers=3)
            generation = await begun_at(first, router, liar, true)
            liar.script, true.script = unlike, alike
            await first.stop()
            liar.now.load()
            await until(lambda: liar.now.submits, "the first try")
            true.now.load()
            assert [token for piece in await collect(generation) for token in piece.tokens] == [20, 21, 22]
            assert (generation.resumed, len(liar.now.submits), len(true.now.submits)) == ("", 1, 1)


async def test_where_no_other_is_left_it_goes_on_there_and_says_so(tmp_path):
    async with ScriptedWorker(worker_id="a") as first, ScriptedWorker(worker_id="b", script=unlike) as liar:
        async with running_router(first, liar, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            generation = await begun_at(first, router, liar)
            await first.stop()
            liar.now.load()
            assert [token for piece in await collect(generation) for token in piece.tokens] == [20, 31, 32]
            assert generation.resumed == "inexact"
            assert [submit.numerics_id for submit in liar.now.submits] == ["n", ""]


async def test_exact_resumption_ends_where_the_only_worker_denies_its_numerics(tmp_path):
    async with ScriptedWorker(worker_id="a") as first, ScriptedWorker(worker_id="b", script=unlike) as liar:
        async with running_router(first, liar, tmp_path=tmp_path, resume="exact") as router:
            await router.ready(workers=2)
            generation = await begun_at(first, router, liar)
            await first.stop()
            liar.now.load()
            with pytest.raises(errors.Unavailable):
                await collect(generation)
            assert len(liar.now.submits) == 1
