"""A worker that sends more than the router can carry: what it has sent and nobody has read is little, so that what it says to a new request
is heard soon. A worker's frames come in one order: nothing passes what is before it.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protos import worker_pb2 as pb
from router.fleet import link
from router.fleet.stream import WorkerStream
from router.service import Generation
from tests.fakes.router import Router, request, running_router
from tests.fakes.scripted_worker import Conversation, ScriptedWorker, until

FLOOD = 6_000  # frames of a running stream that are there at once
FRAME = 18  # bytes of each, with what gRPC sets before it
QUIET = 0.3  # seconds without a frame written: the worker may write no more
MOST = 4 * link.UNREAD  # bytes: the router's window, and what gRPC holds on the worker's side


class Gate:
    """Lets the router read, or not. `read` counts frames."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.read = 0
        monkeypatch.setattr(link, "_read", self._read)

    async def _read(self, call: Any, stream: WorkerStream) -> None:
        while True:
            await self.open.wait()
            frame: pb.Down = await call.read()
            self.read += 1
            stream.handle(frame)


async def begun(router: Router, worker: ScriptedWorker) -> tuple[Generation, int]:
    """A long stream that has its first token, and its handle."""
    opening = asyncio.create_task(router.service.generate(request(max_tokens=1 << 19, ignore_eos=True)))
    submit = (await worker.submits(1))[-1]
    handle = submit.choices[0].handle
    worker.now.tokens(handle, [5], acked=submit.seq)
    return await opening, handle


async def flooded(conversation: Conversation, handle: int) -> int:
    """Sends frames while the worker can write any; returns how many it wrote."""
    loop = asyncio.get_running_loop()
    for _ in range(FLOOD):
        conversation.tokens(handle, [5])
    left, since = conversation.outbox.qsize(), loop.time()
    while left and loop.time() - since < QUIET:
        await asyncio.sleep(0.01)
        if conversation.outbox.qsize() != left:
            left, since = conversation.outbox.qsize(), loop.time()
    return FLOOD - left


def drop_unwritten(conversation: Conversation) -> None:
    """The worker has something better to say."""
    while not conversation.outbox.empty():
        conversation.outbox.get_nowait()


@pytest.mark.parametrize("before", [0, 2_000])
async def test_a_new_request_is_heard_soon_behind_a_stream_that_nobody_can_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """`before`: frames that were read as fast as they came. A busy past lets no more gather."""
    gate = Gate(monkeypatch)
    async with ScriptedWorker(max_model_len=1 << 20) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        running, handle = await begun(router, worker)
        for _ in range(before):
            worker.now.tokens(handle, [5])
        await until(lambda: gate.read >= before, "the past")
        gate.open.clear()
        assert 0 < FRAME * await flooded(worker.now, handle) <= MOST
        opening = asyncio.create_task(router.service.generate(request(max_tokens=2)))
        submit = (await worker.submits(2))[-1]
        drop_unwritten(worker.now)
        worker.now.tokens(submit.choices[0].handle, [5], acked=submit.seq)
        read = gate.read
        gate.open.set()
        new = await asyncio.wait_for(opening, 30)
        assert FRAME * (gate.read - read) <= MOST
        await new.aclose()
        await running.aclose()
