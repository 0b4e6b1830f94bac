"""Many requests over one stream: batched, independent, each ended exactly once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from protos import inference_pb2 as pb
from router.edge.grpc import outbox as outbox_module
from router.edge.grpc import session as session_module
from router.edge.grpc.outbox import Outbox
from shared.errors import Unavailable
from tests.fakes.edges import GrpcEdge, grpc_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import WORDS, FakeService

TEXT = "".join(WORDS)
BOUND = 10  # seconds


@pytest.fixture
async def edge() -> AsyncIterator[GrpcEdge]:
    async with grpc_edge(FakeService()) as running:
        yield running


def start(request_id: str, **fields: object) -> pb.SessionRequest:
    return pb.SessionRequest(start=pb.GenerateRequest(**{"request_id": request_id, "prompt": "Hello", **fields}))


def cancel(request_id: str) -> pb.SessionRequest:
    return pb.SessionRequest(cancel=request_id)


def ends(event: pb.SessionEvent) -> bool:
    return event.done or event.HasField("error")


async def events_until(call, wanted: set[str]) -> list[pb.SessionEvent]:
    """Events until each wanted request has ended."""
    events: list[pb.SessionEvent] = []
    async with asyncio.timeout(BOUND):
        while not wanted <= {event.request_id for event in events if ends(event)}:
            events.extend((await call.read()).events)
    return events


async def rest(call) -> list[pb.SessionEvent]:
    async with asyncio.timeout(BOUND):
        events: list[pb.SessionEvent] = []
        while (message := await call.read()) is not grpc.aio.EOF:
            events.extend(message.events)
        return events


async def held(edge: GrpcEdge, count: int) -> None:
    await until(lambda: len(edge.service.generations) >= count)


async def test_many_requests_run_at_once_and_each_ends_once(edge: GrpcEdge) -> None:
    call = edge.stub.Session()
    names = {f"r{i}" for i in range(50)}
    for name in names:
        await call.write(start(name, return_tokens=True))
    await call.done_writing()
    events = await rest(call)
    for name in names:
        mine = [event for event in events if event.request_id == name]
        assert "".join(chunk.text for event in mine for chunk in event.response.chunks) == TEXT
        assert [ends(event) for event in mine] == [False] * (len(mine) - 1) + [True]
        assert mine[-1].done
        assert mine[-1].response.usage.completion_tokens == len(WORDS)
        assert mine[0].response.HasField("seed")
    assert await call.code() == grpc.StatusCode.OK


async def test_what_comes_at_once_goes_in_one_message(edge: GrpcEdge) -> None:
    edge.service.hold_at = 0
    call = edge.stub.Session()
    for i in range(20):
        await call.write(start(f"r{i}"))
    await held(edge, 20)
    for generation in edge.service.generations:
        generation.release.set()
    await call.done_writing()
    async with asyncio.timeout(BOUND):
        messages = [message async for message in call]
    events = sum(len(message.events) for message in messages)
    assert events >= 20 * (len(WORDS) - 1)
    assert events / len(messages) >= 5


async def test_cancel_ends_its_request_alone(edge: GrpcEdge) -> None:
    edge.service.hold_at = 2
    call = edge.stub.Session()
    await call.write(start("gone", n=2))
    await call.write(start("kept"))
    await held(edge, 2)
    gone, kept = edge.service.generations
    await call.write(cancel("gone"))
    await call.write(cancel("never there"))
    events = await events_until(call, {"gone"})
    last = next(event for event in events if event.request_id == "gone" and event.done)
    assert [c.finish_reason for c in last.response.chunks] == [pb.FINISH_REASON_CANCELLED] * 2
    assert last.response.usage.completion_tokens == 4
    async with asyncio.timeout(BOUND):
        await gone.closed.wait()
    assert not kept.closed.is_set()
    kept.release.set()
    events += await events_until(call, {"kept"})
    await call.write(cancel("kept"))
    await call.done_writing()
    events += await rest(call)
    assert Counter(event.request_id for event in events if ends(event)) == {"gone": 1, "kept": 1}


async def test_cancel_while_queued_ends_with_cancelled_choices(edge: GrpcEdge) -> None:
    edge.service.admit.clear()
    call = edge.stub.Session()
    await call.write(start("r", n=3))
    async with asyncio.timeout(BOUND):
        await edge.service.entered.wait()
    await call.write(cancel("r"))
    (event,) = await events_until(call, {"r"})
    assert [c.finish_reason for c in event.response.chunks] == [pb.FINISH_REASON_CANCELLED] * 3
    assert event.done
    async with asyncio.timeout(BOUND):
        await edge.service.abandoned.wait()
        await edge.gate.idle()
    call.cancel()


async def test_cancel_right_behind_its_start_ends_it_once(edge: GrpcEdge) -> None:
    edge.service.admit.clear()
    call = edge.stub.Session()
    for i in range(20):
        await call.write(start(f"r{i}"))
        await call.write(cancel(f"r{i}"))
    await call.done_writing()
    events = await rest(call)
    assert Counter(event.request_id for event in events if ends(event)) == {f"r{i}": 1 for i in range(20)}
    assert all(event.done for event in events)


async def test_a_bad_start_never_ends_the_session(edge: GrpcEdge) -> None:
    call = edge.stub.Session()
    await call.write(start("", prompt="x"))
    await call.write(pb.SessionRequest())
    await call.write(start("bad", n=0))
    await call.write(start("absent", model="absent"))
    await call.write(start("good"))
    events = await events_until(call, {"bad", "absent", "good"})
    errors = {event.request_id: event.error for event in events if event.HasField("error")}
    assert errors["bad"].param == "n"
    assert errors["bad"].grpc_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert errors["absent"].code == "model_not_found"
    assert {event.error.param for event in events if event.request_id == ""} == {"request_id", "frame"}
    assert "good" not in errors
    call.cancel()


async def test_c27_each_request_has_exactly_one_end_where_ids_repeat(edge: GrpcEdge) -> None:
    edge.service.hold_at = 2
    call = edge.stub.Session()
    for _ in range(5):
        await call.write(start("a"))
    await held(edge, 1)
    await call.write(pb.SessionRequest(cancel="a"))
    await edge.service.generations[0].closed.wait()
    edge.service.hold_at = None
    await call.write(start("a"))
    await call.done_writing()
    events = [event async for response in call for event in response.events]
    ends = [event for event in events if event.done or event.HasField("error")]
    refused = [event for event in ends if event.HasField("error")]
    assert {event.request_id for event in ends} == {"a"}
    assert [event.error.code for event in refused] == ["already_exists"] * 4
    assert [event.response.chunks[-1].finish_reason for event in ends if event.done] == [
        pb.FINISH_REASON_CANCELLED,
        pb.FINISH_REASON_STOP,
    ]


async def test_an_id_in_flight_is_refused_and_the_first_goes_on(edge: GrpcEdge) -> None:
    edge.service.hold_at = 1
    call = edge.stub.Session()
    await call.write(start("r"))
    await held(edge, 1)
    await call.write(start("r"))
    events = await events_until(call, {"r"})
    assert events[-1].error.grpc_code == grpc.StatusCode.ALREADY_EXISTS.value[0]
    edge.service.generations[0].release.set()
    await call.done_writing()
    events += await rest(call)
    assert "".join(chunk.text for event in events for chunk in event.response.chunks) == TEXT
    assert [event.done for event in events].count(True) == 1


async def test_an_id_may_be_used_again_after_its_end(edge: GrpcEdge) -> None:
    call = edge.stub.Session()
    for _ in range(2):
        await call.write(start("r"))
        assert (await events_until(call, {"r"}))[-1].done
    call.cancel()


async def test_failures_in_mid_stream_end_their_request_alone(edge: GrpcEdge) -> None:
    edge.service.hold_at = edge.service.fail_at = 1
    call = edge.stub.Session()
    for name in ("dies", "breaks", "lives"):
        await call.write(start(name))
    await held(edge, 3)
    by_name = dict(zip((r.request_id for r in edge.service.requests), edge.service.generations, strict=True))
    by_name["dies"].failure = Unavailable("the worker is gone", retry_after=0.25)
    by_name["breaks"].failure = RuntimeError("secret")
    for generation in by_name.values():
        generation.release.set()
    events = await events_until(call, set(by_name))
    last = {event.request_id: event for event in events if ends(event)}
    assert last["dies"].error.retry_after_ms == 250
    assert (last["breaks"].error.code, last["breaks"].error.message) == ("internal_error", "internal error")
    assert last["lives"].done
    call.cancel()


async def test_leaving_closes_everything(edge: GrpcEdge) -> None:
    edge.service.hold_at = 2
    call = edge.stub.Session()
    for i in range(5):
        await call.write(start(f"r{i}"))
    await held(edge, 5)
    call.cancel()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(generation.closed.wait() for generation in edge.service.generations))
        await edge.gate.idle()


async def test_requests_of_one_session_are_bounded(edge: GrpcEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_IN_FLIGHT", 2)
    edge.service.hold_at = 1
    call = edge.stub.Session()
    for name in ("a", "b", "c"):
        await call.write(start(name))
    events = await events_until(call, {"c"})
    (refused,) = [event for event in events if event.request_id == "c"]
    assert refused.error.grpc_code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    await held(edge, 2)
    for generation in edge.service.generations:
        generation.release.set()
    await events_until(call, {"a", "b"})
    await call.write(start("c"))
    await held(edge, 3)
    edge.service.generations[2].release.set()
    assert (await events_until(call, {"c"}))[-1].done
    call.cancel()


async def test_a_shut_gate_ends_idle_sessions_and_lets_busy_ones_finish(edge: GrpcEdge) -> None:
    edge.service.hold_at = 1
    idle, busy = edge.stub.Session(), edge.stub.Session()
    await idle.wait_for_connection()
    await busy.write(start("r"))
    await held(edge, 1)
    edge.gate.close()
    async with asyncio.timeout(BOUND):
        assert await idle.code() == grpc.StatusCode.UNAVAILABLE
    await busy.write(start("late"))
    events = await events_until(busy, {"late"})
    assert events[-1].error.code == "unavailable"
    edge.service.generations[0].release.set()
    assert (await events_until(busy, {"r"}))[-1].done
    async with asyncio.timeout(BOUND):
        assert await busy.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_outbox_makes_producers_wait_but_never_loses_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "EVENTS", 2)
    outbox, written = Outbox(), []
    for name in ("a", "b"):
        await outbox.put(pb.SessionEvent(request_id=name))
    waiting = asyncio.create_task(outbox.put(pb.SessionEvent(request_id="d")))
    await asyncio.sleep(0)
    outbox.put_last(pb.SessionEvent(request_id="c", done=True))
    assert not waiting.done()

    async def write(events) -> None:
        written.extend(event.request_id for event in events)

    drain = asyncio.create_task(outbox.drain(write))
    async with asyncio.timeout(BOUND):
        await waiting
        outbox.close()
        await drain
    assert written == ["a", "b", "c", "d"]


async def test_large_events_go_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MESSAGE_BYTES", 100)
    outbox, sizes = Outbox(), []
    for size in (40, 40, 40, 300, 10):
        outbox.put_last(pb.SessionEvent(request_id="x" * size))
    outbox.close()

    async def write(events) -> None:
        sizes.append([len(event.request_id) for event in events])

    await outbox.drain(write)
    assert sizes == [[40, 40], [40], [300], [10]]
