"""One tenant's flood before another's few requests: who waits, who is bounced, and before what work."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from protos import inference_pb2 as pb
from router.edge import door as door_module
from router.edge.door import CROWD, Door
from router.fleet.stream import MOST_UNWRITTEN
from router.tenancy.caller import OPEN_CALLER
from shared import rpc
from shared.errors import Overloaded
from shared.types import Tenant
from tests.fakes.edges import grpc_edge, http_edge
from tests.fakes.router import request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, load_report, until
from tests.fakes.service import FakeService

A, B = Tenant(id="a"), Tenant(id="b")


async def test_the_last_places_of_a_worker_are_not_for_whoever_floods_it(tmp_path: Path) -> None:
    """With 16 to run, 2 places are held back while others wait there: 5 of 7 go to B's first and A's flood."""
    async with ScriptedWorker(first_load=load_report(credits=7, waiting=50), max_running=16) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            few = [asyncio.create_task(router.service.generate(request(tenant=B)))]
            await worker.submits(1)
            flood = [asyncio.create_task(router.service.generate(request(tenant=A))) for _ in range(8)]
            await until(lambda: router.metric("requests_queued", model="tiny") == 4, "the rest of the flood to wait")
            assert [submit.tenant.id for submit in await worker.submits(5)] == ["b", *"aaaa"]
            few += [asyncio.create_task(router.service.generate(request(tenant=B))) for _ in range(2)]
            assert [submit.tenant.id for submit in await worker.submits(7)][5:] == ["b", "b"]
            assert router.metric("requests_queued", model="tiny") == 4
            for task in (*flood, *few):
                task.cancel()
            await asyncio.wait((*flood, *few))


async def test_where_there_is_one_tenant_alone_it_has_every_place(tmp_path: Path) -> None:
    async with ScriptedWorker(first_load=load_report(credits=7, waiting=50), max_running=16) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            tasks = [asyncio.create_task(router.service.generate(request(tenant=A))) for _ in range(8)]
            assert len(await worker.submits(7)) == 7
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_a_floods_submits_do_not_pile_up_before_anothers(tmp_path: Path) -> None:
    """What is not written yet is bounded, so that the fair queue decides who is next until just before."""
    async with ScriptedWorker(first_load=load_report(credits=200), max_running=16) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            flood = [asyncio.create_task(router.service.generate(request(tenant=A))) for _ in range(100)]
            stream = router.service._fleet.links[0].worker.stream
            most = 0
            async with asyncio.timeout(20):
                while not all(task.done() for task in flood):
                    most = max(most, stream.outbound.submits)
                    worker.now.load(credits=200)
                    await asyncio.sleep(0)
            assert len(worker.now.submits) == 100
            assert 0 < most <= MOST_UNWRITTEN
            for generation in await asyncio.gather(*flood):
                await generation.aclose()


async def test_a_tenant_whose_queue_is_full_is_bounced_before_its_body_is_read() -> None:
    service = FakeService(full=Overloaded("the queue is full: 256 requests are waiting", retry_after=3.0))
    async with http_edge(service) as edge:
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer = await edge.http.post(path, content=b"no JSON at all")
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
            assert answer.json()["error"]["code"] == "overloaded"
        assert (await edge.http.get("/v1/models")).status_code == 200
    assert service.requests == []


async def test_over_grpc_too_a_full_queue_bounces_what_is_not_read() -> None:
    service = FakeService(full=Overloaded("the queue is full: 256 requests are waiting", retry_after=3.0))
    async with grpc_edge(service) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        generate = channel.unary_stream("/octavo.v1.Inference/Generate", request_serializer=lambda data: data)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await generate(b"\xff no message at all").read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rpc.from_rpc_error(refused.value).retry_after == 3.0
        frame = pb.SessionRequest(start=pb.GenerateRequest(request_id="r1"))  # no prompt: it is not looked at
        session = edge.stub.Session(iter([frame]))
        (event,) = (await session.read()).events
        assert (event.request_id, event.error.code) == ("r1", "overloaded")
    assert service.requests == []


async def test_what_waits_at_the_door_has_its_place_before_what_comes() -> None:
    service = FakeService(places=3)
    door = Door(service)
    callers = [replace(OPEN_CALLER, tenant=Tenant(id=name)) for name in "ab"]
    waiting = [asyncio.create_task(door.enter(callers[0])) for _ in range(20)]
    done = await asyncio.gather(*waiting, return_exceptions=True)
    bounced = sum(isinstance(one, Overloaded) for one in done)
    assert bounced == 20 - 2 - service.places, (
        "one passes at once and one in the next turn, and as many wait as there are places"
    )
    await door.enter(callers[1])


async def test_others_pass_while_a_crowd_is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "PACE_SECONDS", 3_600.0)
    service = FakeService(crowd=CROWD)
    door = Door(service)
    paced = [asyncio.create_task(door.enter(replace(OPEN_CALLER, tenant=Tenant(id="a")))) for _ in range(9)]
    await asyncio.sleep(0)
    service.crowd = 0
    async with asyncio.timeout(20):
        await door.enter(replace(OPEN_CALLER, tenant=Tenant(id="b")))
    assert not any(task.done() for task in paced)
    for task in paced:
        task.cancel()


async def test_requests_of_a_crowd_are_read_all_the_same() -> None:
    async with http_edge(FakeService(crowd=CROWD)) as edge:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
        answers = await asyncio.gather(*(edge.http.post("/v1/completions", json=body) for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert len(edge.service.requests) == 20


async def test_a_full_queue_is_told_to_its_tenant_alone(tmp_path: Path) -> None:
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        limit = 3
        async with running_router(worker, tmp_path=tmp_path, max_queued_per_tenant=limit) as router:
            await router.ready()
            tasks = [asyncio.create_task(router.service.generate(request(tenant=A))) for _ in range(limit)]
            await until(lambda: router.metric("requests_queued", model="tiny") == limit, "the queue")
            with pytest.raises(Overloaded) as refused:
                router.service.check_room(request(tenant=A).caller)
            assert refused.value.retry_after
            router.service.check_room(request(tenant=B).caller)
            assert [router.service.waiting(request(tenant=tenant).caller) for tenant in (A, B)] == [limit, 0]
            assert router.metric("requests_total", model="unknown", outcome="overloaded") == 1
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
