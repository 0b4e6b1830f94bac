"""What was loaded at run time: all workers of a model have it alike, those that come later or begin again included, or none has."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from router.adapters import view
from router.adapters.registry import Registry
from router.adapters.view import WorkerAdapters
from router.tenancy.caller import OPEN_CALLER
from router.tenancy.records import AdapterRecord
from shared.errors import (
    AlreadyExists,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    Unavailable,
)
from shared.types import AdapterState
from tests.fakes.router import Router, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, echo, until
from tests.integration.test_router_adapters import OWNER, A, B, entry, of, refused, scripted, sent


def digest(source: str) -> bytes:
    return source.encode().ljust(32)[:32]


def versions(*workers: ScriptedWorker, name: str = "style") -> list[bytes]:
    return [worker.adapters[name].digest for worker in workers if name in worker.adapters]


async def load(router: Router, name: str, source: str, **options: Any) -> Any:
    return await router.service.operator.load(OPEN_CALLER, name, source, **options)


async def ask(router: Router, model: str = "style") -> None:
    await router.service.generate(request(model=model))


# ---- all or none


async def test_a_load_that_one_worker_refuses_leaves_what_the_name_meant_at_all(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        await load(router, "style", "/old")
        two.refuses = InvalidRequest("rank 512 is over 64", code="adapter_rank_too_high")
        with pytest.raises(InvalidRequest, match=r"rank 512 is over 64 \(1 of 2 workers refused it") as caught:
            await load(router, "style", "/new", replace=True)
        assert caught.value.code == "adapter_rank_too_high"
        assert versions(one, two) == [digest("/old")] * 2
        await ask(router)
        assert {version for worker in (one, two) for _, version in sent(worker)} == {digest("/old")}


async def test_where_one_worker_refuses_at_the_last_the_others_go_back(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        await load(router, "style", "/old", pin=True)
        two.refuses_late = Overloaded("no room any more", code="adapter_memory")
        with pytest.raises(Overloaded, match="no room any more"):
            await load(router, "style", "/new", replace=True)
        with pytest.raises(Overloaded):
            await load(router, "other", "/new")
        assert versions(one, two) == [digest("/old")] * 2
        assert [worker.adapters["style"].pinned for worker in (one, two)] == [True, True]
        assert versions(one, two, name="other") == []
        (report,) = router.service.operator.list(OPEN_CALLER)
        assert (report.digest, report.source, report.registered) == (digest("/old"), "/old", True)


async def test_workers_whose_sources_differ_load_nothing(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        two.contents["/a"] = B
        with pytest.raises(InvalidRequest, match="2 different versions") as caught:
            await load(router, "style", "/a")
        assert caught.value.code == "adapter_versions_differ"
        assert (one.loads, two.loads) == ([], [])
        assert isinstance(await refused(router, "style"), ModelNotFound)


async def test_a_pin_that_one_worker_refuses_no_worker_keeps(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        await load(router, "style", "/a")
        two.refuses = Overloaded("3 adapters are pinned", code="adapter_memory")
        with pytest.raises(Overloaded, match="3 adapters are pinned"):
            await router.service.operator.pin(OPEN_CALLER, "style", True)
        assert [worker.adapters["style"].pinned for worker in (one, two)] == [False, False]
        two.refuses = None
        assert (await router.service.operator.pin(OPEN_CALLER, "style", True)).pinned
        assert [worker.adapters["style"].pinned for worker in (one, two)] == [True, True]
        assert not (await router.service.operator.pin(OPEN_CALLER, "style", False)).pinned
        assert [worker.adapters["style"].pinned for worker in (one, two)] == [False, False]


async def test_a_name_that_is_taken_is_replaced_only_where_that_is_asked(tmp_path):
    async with scripted() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        await load(router, "style", "/a")
        worker.refuses = AlreadyExists("adapter 'style' is loaded with another version", param="name")
        with pytest.raises(AlreadyExists):
            await load(router, "style", "/b")
        assert [stage.replace for stage in worker.stages] == [False, False]


async def test_pins_need_a_key_of_an_admin(tmp_path):
    async with scripted(entry("acme/own", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        acme = of("acme", scopes=OWNER)
        with pytest.raises(PermissionDenied):
            await router.service.operator.pin(acme, "own", True)
        with pytest.raises(PermissionDenied):
            await router.service.operator.load(acme, "own", "", pin=True)
        assert (worker.pins, worker.stages) == ([], [])


# ---- workers that are lost, and callers that leave, on the way


class Dying(ScriptedWorker):
    """Ends while it is told to load: when it is to read alone (`at_stage`), or when it is to use what it has read."""

    at_stage = False

    async def LoadAdapter(self, request: Any, context: Any) -> Any:
        if request.stage is self.at_stage:
            asyncio.get_running_loop().create_task(self.stop())
            await asyncio.Event().wait()
        return await super().LoadAdapter(request, context)


@pytest.mark.parametrize("at_stage", [True, False])
async def test_a_worker_that_is_lost_on_the_way_holds_up_nobody_and_is_told_when_it_comes_again(tmp_path, at_stage):
    one, two = scripted(worker_id="w1"), Dying(script=echo, max_adapters=4, worker_id="w2")
    two.at_stage = at_stage
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        assert (await load(router, "style", "/a")).digest == digest("/a")
        await ask(router)
        assert (versions(one), versions(two)) == ([digest("/a")], [])
        again = scripted(worker_id="w3")
        again.port = two.port
        async with again:
            await until(lambda: versions(again) == [digest("/a")], "the adapter")


async def test_a_caller_that_leaves_in_the_middle_leaves_no_half_of_a_change(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        task = asyncio.create_task(load(router, "style", "/a"))
        await until(lambda: one.stages or two.stages, "the beginning")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: versions(one, two) == [digest("/a")] * 2, "both workers")
        await until(lambda: [r.registered for r in router.service.operator.list(OPEN_CALLER)] == [True], "the registry")


async def test_a_pin_that_finds_no_room_does_not_keep_a_newcomer_from_serving(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two:
        port = two.port
        await two.stop()
        async with running_router(one, f"127.0.0.1:{port}", tmp_path=tmp_path) as router:
            await router.ready()
            await load(router, "style", "/a", pin=True)
            two.refuses = Overloaded("3 adapters are pinned", code="adapter_memory")  # of pins
            await two.__aenter__()
            await until(lambda: versions(two) == [digest("/a")], "the adapter")

            def reasons() -> list[str]:
                return [at.error for at in router.service.operator.list(OPEN_CALLER)[0].workers]

            await until(lambda: reasons() == ["", "3 adapters are pinned"], "the reason")
            assert not two.adapters["style"].pinned


# ---- told


async def test_each_worker_is_told_of_and_what_is_the_operators_stays_his(tmp_path):
    one = scripted(entry("acme/own", A, source="/dir/acme/own"), entry("style", B), worker_id="w1")
    two = scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        operator = router.service.operator
        assert [report.name for report in operator.list(OPEN_CALLER)] == ["acme/own", "style"]
        (own, shared) = operator.list(of("acme", scopes=OWNER))
        assert (own.source, shared.name) == ("", "style")
        assert operator.list(OPEN_CALLER)[0].source == "/dir/acme/own"
        assert [(at.worker, at.info is not None) for at in own.workers] == [("w1", True), ("w2", False)]
        assert [report.name for report in operator.list(of("other", scopes=OWNER))] == ["style"]
        with pytest.raises(PermissionDenied):
            operator.list(of("other"))
        assert operator.list(OPEN_CALLER, model="elsewhere") == []
        assert (
            operator.get(of("acme", scopes=OWNER), "own") == operator.get(of("acme", scopes=OWNER), "acme/own") == own
        )
        assert operator.get(of("acme", scopes=OWNER), "style", model="tiny") == shared
        assert operator.get(OPEN_CALLER, "acme/own").source == "/dir/acme/own"
        with pytest.raises(PermissionDenied):
            operator.get(of("other"), "style")
        hidden = ((of("other", scopes=OWNER), "acme/own", ""), (OPEN_CALLER, "own", ""), (OPEN_CALLER, "style", "else"))
        for caller, name, model in hidden:
            with pytest.raises(ModelNotFound):
                operator.get(caller, name, model=model)


# ---- workers that come later


async def test_a_worker_that_begins_again_is_told_before_it_gets_requests(tmp_path):
    async with scripted(worker_id="w1") as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        await load(router, "style", "/a", pin=True)
        worker.adapters.clear()
        worker.info = replace(worker.info, worker_id="w2")
        worker.refuses_late = Unavailable("not yet")
        worker.now.drop()
        await until(lambda: len(worker.conversations) == 2, "a second stream")
        await router.ready()
        await until(lambda: len(worker.loads) == 2, "a load")
        error = await refused(router, "style")
        assert (type(error), error.code) == (Unavailable, "adapter_unavailable")
        assert not worker.now.submits
        worker.refuses_late = None
        await until(lambda: router.service.operator.list(OPEN_CALLER)[0].workers[0].info, "the adapter")
        await ask(router)
        assert sent(worker) == [("style", digest("/a"))]
        assert {(load.source, load.digest) for load in worker.loads[1:]} == {("/a", digest("/a"))}
        await until(lambda: worker.adapters["style"].pinned, "the pin")


async def test_a_worker_that_joins_gets_what_was_loaded_before_it(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two:
        port = two.port
        await two.stop()
        async with running_router(one, f"127.0.0.1:{port}", tmp_path=tmp_path) as router:
            await router.ready()
            await load(router, "style", "/a")
            await load(router, "other", "/b")
            await router.service.operator.unload(OPEN_CALLER, "other")
            await two.__aenter__()
            await until(lambda: versions(two) == [digest("/a")], "the adapter")
            assert "other" not in two.adapters


async def test_a_source_that_holds_something_else_by_then_is_not_taken_and_said(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two:
        port = two.port
        await two.stop()
        async with running_router(one, f"127.0.0.1:{port}", tmp_path=tmp_path) as router:
            await router.ready()
            await load(router, "style", "/a")
            two.contents["/a"] = B
            await two.__aenter__()
            await until(lambda: two.loads, "an attempt")
            await until(lambda: router.service.operator.list(OPEN_CALLER)[0].workers[-1].error, "the reason")
            for _ in range(4):
                await ask(router)
            assert (len(sent(one)), sent(two), two.adapters) == (4, [], {})


async def test_what_was_unloaded_while_a_worker_was_away_is_unloaded_there_too(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        await load(router, "style", "/a")
        port = two.port
        two.now.drop()
        await two.stop()
        await until(lambda: router.metric("workers", state="ready") == 1)
        await router.service.operator.unload(OPEN_CALLER, "style")
        assert (two.port, list(two.adapters)) == (port, ["style"])
        await two.__aenter__()
        await until(lambda: not two.adapters, "an unload")
        assert isinstance(await refused(router, "style"), ModelNotFound)


async def test_what_other_routers_do_is_followed(tmp_path):
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        async with running_router(one, two, tmp_path=tmp_path) as other:
            await router.ready(2)
            await other.ready(2)
            for source in ("/a", "/b"):
                await load(router, "style", source, replace=True)
                told = [replace(worker.adapters["style"], loaded_unix_ms=ord(source[1])) for worker in (one, two)]
                for worker, info in zip((one, two), told, strict=True):
                    worker.adapters["style"] = info
                    for conversation in worker.conversations:
                        conversation.adapters(info)
                await until(
                    lambda: (
                        [r.digest for r in other.service.operator.list(OPEN_CALLER) if r.registered]
                        == [versions(one)[0]]
                    ),
                    "the news",
                )
            await other.service.operator.unload(OPEN_CALLER, "style")
            for worker in (one, two):
                for conversation in worker.conversations:
                    conversation.adapters(removed=["style"])
            await until(lambda: not router.service.operator.list(OPEN_CALLER), "the end")
            assert isinstance(await refused(router, "style"), ModelNotFound)
            assert (one.adapters, two.adapters) == ({}, {})


async def test_a_router_that_begins_again_learns_from_one_worker_what_the_others_lack(tmp_path):
    one = scripted(entry("style", digest("/a"), source="/a", listed=False), worker_id="w1")
    two = scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path):
        await until(lambda: versions(two) == [digest("/a")], "the adapter")
        assert [load.source for load in two.loads] == ["/a"]


async def test_what_the_directory_lists_is_left_to_each_worker(tmp_path):
    one, two = scripted(entry("style", A, source="/dir/style"), worker_id="w1"), scripted(worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        await load(router, "own", "/a")
        assert (two.loads[-1].name, list(two.adapters)) == ("own", ["own"])


# ---- the registry alone


def record(name: str = "style", **fields: Any) -> AdapterRecord:
    return AdapterRecord(**({"name": name, "source": "/a", "digest": A, "model": "tiny"} | fields))


async def test_the_newest_of_what_workers_tell_is_what_a_name_means():
    registry = Registry()
    for loaded, version in ((5, A), (7, B), (6, A)):
        registry.learn(entry("style", version, loaded, source="/a", listed=False), "tiny")
    assert registry.records["style"].digest == B
    registry.learn(entry("listed", A), "tiny")
    registry.learn(entry("unread", listed=False), "tiny")
    assert set(registry.records) == {"style"}


async def test_what_was_unloaded_is_hidden_until_it_is_another_version_or_loaded_again():
    registry = Registry()
    await registry.put(record(), actor="me")
    await registry.drop("style", actor="me")
    assert registry.hides(entry("style", A))
    assert registry.hides(entry("style"))
    assert not registry.hides(entry("style", B))
    await registry.put(record(digest=B), actor="me")
    assert not registry.hides(entry("style", A))


# ---- what a call told before the worker's own frames did


async def test_a_frame_from_before_a_load_does_not_undo_it_and_one_from_after_does(monkeypatch):
    monkeypatch.setattr(view, "DOUBT_SECONDS", 0.01)
    adapters = WorkerAdapters()
    adapters.take(AdapterState(complete=True))
    adapters.note(entry("style", A))
    adapters.take(AdapterState(removed=("style",)))  # from when it was not there yet
    assert adapters.entries["style"].digest == A
    adapters.take(AdapterState(entries=(entry("style", A, rank=3),)))
    await asyncio.sleep(0.02)  # past the doubt, of which nothing may come
    assert adapters.entries["style"].rank == 3
    adapters.take(AdapterState(removed=("style",)))
    assert (adapters.entries, adapters.gone) == ({}, {"style"})


async def test_a_load_that_another_router_undid_at_once_is_believed_to_be_undone(monkeypatch):
    monkeypatch.setattr(view, "DOUBT_SECONDS", 0.01)
    adapters = WorkerAdapters()
    adapters.note(entry("style", A))
    adapters.take(AdapterState(removed=("style",)))
    await until(lambda: not adapters.entries, "the removal")
    adapters.note(entry("style", A))
    adapters.note_gone("style")
    assert adapters.entries == {}
