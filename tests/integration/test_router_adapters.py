"""Requests that name adapters, over real streams: what a name means to whom, where it goes, and what is answered where it means nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from router.placement.prompt import prompt_marks
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.records import Scope
from shared.errors import InvalidRequest, ModelNotFound, OctavoError, Overloaded, PermissionDenied, Unavailable
from shared.hashing import chain
from shared.types import AdapterInfo, RejectCode, Tenant
from tests.fakes.router import Router, collect, request, running_router, text_of
from tests.fakes.scripted_worker import ScriptedWorker, echo, until

A, B, C = (letter.encode() * 32 for letter in "abc")


def entry(name: str, digest: bytes = b"", loaded: int = 1, **more: Any) -> AdapterInfo:
    return AdapterInfo(name=name, digest=digest, loaded_unix_ms=loaded, **({"listed": True} | more))


def scripted(*adapters: AdapterInfo, script: Any = echo, **info: Any) -> ScriptedWorker:
    return ScriptedWorker(script=script, adapters=adapters, **({"max_adapters": 4} | info))


def of(tenant: str, **more: Any) -> Caller:
    return Caller(tenant=Tenant(id=tenant), **more)


def sent(worker: ScriptedWorker) -> list[tuple[str, bytes]]:
    return [(submit.adapter_name, submit.adapter_digest) for submit in worker.now.submits]


async def refused(router: Router, model: str, caller: Caller = OPEN_CALLER) -> OctavoError:
    with pytest.raises(OctavoError) as caught:
        await router.service.generate(request(model=model, caller=caller))
    return caught.value


async def test_a_name_and_base_with_name_reach_the_worker_as_name_and_digest(tmp_path):
    async with scripted(entry("style", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        for model in ("style", "tiny:style", "tiny"):
            generation = await router.service.generate(request(model=model, max_tokens=3))
            assert text_of(await collect(generation))
            assert (generation.model, generation.base) == (model, "tiny")
        assert sent(worker) == [("style", A), ("style", A), ("", b"")]


async def test_an_adapter_that_was_not_read_yet_is_sent_without_a_digest(tmp_path):
    async with scripted(entry("style")) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        await router.service.generate(request(model="style"))
        assert sent(worker) == [("style", b"")]


async def test_a_served_name_wins_and_the_adapter_stays_within_reach(tmp_path):
    async with scripted(entry("tiny", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        for model in ("tiny", "tiny:tiny"):
            await router.service.generate(request(model=model))
        assert sent(worker) == [("", b""), ("tiny", A)]
        assert [(card.id, card.parent) for card in router.service.models()] == [("tiny", ""), ("tiny:tiny", "tiny")]


async def test_the_tenants_own_goes_before_the_shared_one(tmp_path):
    adapters = (entry("style", A), entry("acme/style", B))
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        for caller, model in ((of("acme"), "style"), (of("acme"), "acme/style"), (of("other"), "style")):
            await router.service.generate(request(model=model, caller=caller))
        assert sent(worker) == [("acme/style", B), ("acme/style", B), ("style", A)]


async def test_what_is_anothers_hidden_or_unknown_is_answered_alike(tmp_path):
    adapters = (entry("style", A), entry("acme/style", B))
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        limited = of("other", adapters=("w*",))
        told = [(name, await refused(router, name, limited)) for name in ("acme/style", "style", "nothing")]
        for name, error in told:
            assert type(error) is ModelNotFound
            assert (error.message, error.code) == (f"the model {name!r} does not exist", "model_not_found")
        assert not worker.now.submits


async def test_an_adapter_of_a_model_that_the_caller_does_not_see_is_none(tmp_path):
    async with scripted(entry("style", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        for name in ("style", "tiny:style"):
            assert isinstance(await refused(router, name, of("other", models=("large*",))), ModelNotFound)


async def test_each_caller_is_listed_what_it_sees(tmp_path):
    adapters = (entry("style", A, loaded=5_000), entry("acme/own", B), entry("write", C))
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        cards = router.service.models(of("acme", adapters=("s*",)))
        assert [(card.id, card.parent) for card in cards] == [("tiny", ""), ("acme/own", "tiny"), ("style", "tiny")]
        assert (cards[2].created, cards[2].max_model_len) == (5, 256)
        assert [card.id for card in router.service.models(of("other"))] == ["tiny", "style", "write"]


async def test_a_name_finds_the_card_of_what_a_request_with_it_would_get(tmp_path):
    adapters = (entry("style", A), entry("acme/style", B), entry("tiny", C), entry("own/only", A))
    meant = {
        "tiny": ("tiny", ""),
        "style": ("acme/style", "tiny"),
        "tiny:style": ("acme/style", "tiny"),
        "acme/style": ("acme/style", "tiny"),
        "tiny:acme/style": ("acme/style", "tiny"),
        "tiny:tiny": ("tiny:tiny", "tiny"),
        "": ("tiny", ""),
    }
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        acme = of("acme")
        cards = router.service.models(acme)
        for name, expected in meant.items():
            card = router.service.model(name, acme)
            assert (card.id, card.parent) == expected, name
            assert card in cards
        assert router.service.model("style", of("other")).id == "style"
        for name in ("own/only", "tiny:own/only", "tiny:none", "none:style"):
            with pytest.raises(ModelNotFound):
                router.service.model(name, acme)


async def test_of_several_versions_the_one_loaded_last_is_meant_and_only_its_workers_get_it(tmp_path):
    old = scripted(entry("style", A, loaded=1), worker_id="w1")
    new = scripted(entry("style", B, loaded=2), worker_id="w2")
    unread = scripted(entry("style"), worker_id="w3")
    async with old, new, unread, running_router(old, new, unread, tmp_path=tmp_path) as router:
        await router.ready(3)
        for number in range(9):
            await router.service.generate(request(model="style", seed=number))
        assert sent(old) == []
        assert {*sent(new), *sent(unread)} == {("style", B)}


async def test_a_replacement_is_used_from_the_next_request_on_and_an_unloaded_name_is_unknown(tmp_path):
    async with scripted(entry("style", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        await router.service.generate(request(model="style"))
        worker.now.adapters(entry("style", B, loaded=2))
        view = router.service._fleet.links[0].worker.stream.adapters
        await until(lambda: view.entries["style"].digest == B)
        await router.service.generate(request(model="style"))
        worker.now.adapters(removed=["style"])
        await until(lambda: not view.entries)
        assert isinstance(await refused(router, "style"), ModelNotFound)
        assert sent(worker) == [("style", A), ("style", B)]


async def test_a_request_that_meets_a_replacement_on_its_way_begins_again_on_the_new_version(tmp_path):
    async with scripted(entry("style", A), script=None) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(model="style", max_tokens=2)))
        await worker.submits(1)
        worker.now.adapters(entry("style", B, loaded=2))
        worker.now.reject(1, RejectCode.ADAPTER_VERSION_UNAVAILABLE)
        worker.now.load()
        submits = await worker.submits(2)
        worker.now.tokens(submits[1].choices[0].handle, [10, 11], acked=2)
        worker.now.finish(submits[1].choices[0].handle, 2)
        await collect(await task)
        assert sent(worker) == [("style", A), ("style", B)]


@pytest.mark.parametrize(
    ("code", "kind", "told", "wait"),
    [
        (RejectCode.ADAPTER_UNKNOWN, ModelNotFound, "the model 'style' does not exist", None),
        (RejectCode.ADAPTER_INVALID, InvalidRequest, "rank 512 is over 64", None),
        (RejectCode.ADAPTER_MEMORY, Overloaded, "no room", 2.5),
        (RejectCode.ADAPTER_VERSION_UNAVAILABLE, Unavailable, "gone", 1.0),
    ],
)
async def test_what_a_worker_refuses_is_told_with_its_reason(tmp_path, code, kind, told, wait):
    def script(conversation: Any, submit: Any) -> None:
        message = "secret of the worker" if code is RejectCode.ADAPTER_UNKNOWN else told
        conversation.load()
        conversation.reject(submit.seq, code, message=message, retry_after_ms=2_500)

    async with (
        scripted(entry("style", A), script=script) as worker,
        running_router(worker, tmp_path=tmp_path) as router,
    ):
        await router.ready()
        error = await refused(router, "style")
        assert (type(error), error.message, error.retry_after) == (kind, told, wait)


async def test_a_worker_that_is_gone_is_not_an_adapter_that_is_unknown(tmp_path):
    adapters = (entry("style", A), entry("acme/own", B))
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        worker.now.drop()
        await worker.stop()
        await until(lambda: router.metric("workers", state="ready") == 0)
        assert isinstance(await refused(router, "style"), Unavailable)
        assert isinstance(await refused(router, "acme/own"), ModelNotFound)


async def test_the_prefix_of_one_version_is_not_looked_for_under_another(tmp_path):
    async with (
        scripted(entry("style", A), entry("unread")) as worker,
        running_router(worker, tmp_path=tmp_path, policy="cost") as router,
    ):
        await router.ready()
        prompt = tuple(range(10, 90))
        seen: list[Sequence[bytes]] = []
        inner = router.service._dispatcher.submit

        def look(flight: Any) -> None:
            seen.append(flight.job.marks.hashes)
            inner(flight)

        router.service._dispatcher.submit = look  # type: ignore[method-assign]
        for model in ("tiny", "style", "unread"):
            await router.service.generate(request(*prompt, model=model, max_tokens=1))
        salt = OPEN_CALLER.tenant.salt
        worker_hashes = [
            prompt_marks(chain(model_revision="r1", adapter_digest=digest, salt=salt), prompt).hashes
            for digest in (b"", A)
        ]
        assert seen[:2] == worker_hashes
        assert len(set(map(tuple, seen))) == 3


async def test_a_worker_is_not_used_before_it_has_told_its_adapters(tmp_path):
    async with scripted() as worker:
        worker.tells_adapters = False
        async with running_router(worker, tmp_path=tmp_path) as router:
            await until(lambda: worker.tokenizer_calls and worker.conversations)
            worker.now.adapters(entry("style", A))
            assert isinstance(await refused(router, "style"), Unavailable)
            worker.now.adapters(entry("more", B), complete=True)
            await router.ready()
            for model in ("style", "more"):
                await router.service.generate(request(model=model))
            assert sent(worker) == [("style", A), ("more", B)]


OWNER = frozenset({Scope.INFER, Scope.ADAPTERS})


async def test_loading_reaches_every_worker_and_is_known_at_once(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        assert (await router.service.operator.load(OPEN_CALLER, "style", "/a")).name == "style"
        assert [load.source for load in (*one.loads, *two.loads)] == ["/a", "/a"]
        await router.service.generate(request(model="style"))
        assert await router.service.operator.unload(OPEN_CALLER, "style") == "style"
        assert isinstance(await refused(router, "style"), ModelNotFound)
        assert (one.adapters, two.adapters) == ({}, {})


async def test_what_one_worker_refuses_no_worker_keeps(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        two.refuses = InvalidRequest("rank 512 is over 64", code="adapter_rank_too_high")
        with pytest.raises(InvalidRequest, match="rank 512 is over 64"):
            await router.service.operator.load(OPEN_CALLER, "style", "/a")
        assert (len(one.stages), one.loads) == (1, [])
        assert (one.adapters, two.adapters) == ({}, {})
        assert isinstance(await refused(router, "style"), ModelNotFound)


async def test_a_tenants_key_loads_and_unloads_its_own_names_alone(tmp_path):
    adapters = (entry("style", A), entry("other/own", B))
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        service, acme = router.service, of("acme", scopes=OWNER)
        assert (await service.operator.load(acme, "mine", "")).name == "acme/mine"
        assert [(load.name, load.source) for load in worker.loads] == [("acme/mine", "")]
        for name, source in (("other/x", ""), ("mine", "/etc"), ("mine", "other/own"), ("mine", "acme/../other/own")):
            with pytest.raises(PermissionDenied):
                await service.operator.load(acme, name, source)
        for name in ("style", "other/own", "nothing"):
            with pytest.raises(ModelNotFound, match=f"there is no adapter '{name}'") as caught:
                await service.operator.unload(acme, name)
            assert caught.value.param == "name"
        assert set(worker.adapters) == {"style", "other/own", "acme/mine"}
        assert await service.operator.unload(acme, "mine") == "acme/mine"
        assert len(worker.loads) == 1


async def test_a_key_for_inference_alone_changes_no_adapters(tmp_path):
    async with scripted(entry("acme/own", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        with pytest.raises(PermissionDenied):
            await router.service.operator.load(of("acme"), "mine", "")
        with pytest.raises(PermissionDenied):
            await router.service.operator.unload(of("acme"), "own")
        assert (worker.loads, set(worker.adapters)) == ([], {"acme/own"})
