"""The order in which frames go to a worker: aborts first, yet never before what they abort."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from protos import worker_pb2 as pb
from router.fleet.outbound import Outbound


def submit(seq: int, parts: int = 1) -> list[pb.Up]:
    more = [pb.Up(submit_part=pb.SubmitPart(seq=seq)) for _ in range(parts - 1)]
    return [pb.Up(submit=pb.Submit(seq=seq)), *more]


def abort(seq: int) -> pb.Up:
    return pb.Up(abort=pb.Abort(handles=[seq]))


async def drain(outbound: Outbound) -> list[tuple[str, int]]:
    """What is written until nothing is left, as (kind, seq)."""
    outbound.put(pb.Up(ping=pb.Ping(nonce=999)))
    names = []
    while True:
        frame = await asyncio.wait_for(outbound.get(), 5)
        kind = frame.WhichOneof("frame")
        if kind == "ping":
            return names
        number = frame.abort.handles[0] if kind == "abort" else getattr(frame, kind).seq
        names.append((kind, number))


async def test_an_abort_overtakes_other_submits():
    outbound = Outbound()
    outbound.put_submit(1, submit(1))
    await outbound.get()
    outbound.put_submit(2, submit(2))
    outbound.put_abort(1, abort(1))
    assert await drain(outbound) == [("abort", 1), ("submit", 2)]


async def test_an_abort_follows_the_last_part_of_its_own_submit():
    outbound = Outbound()
    outbound.put_submit(1, submit(1, parts=3))
    await outbound.get()
    assert not outbound.take_back(1)
    outbound.put_abort(1, abort(1))
    assert await drain(outbound) == [("submit_part", 1), ("submit_part", 1), ("abort", 1)]


async def test_a_submit_that_is_not_begun_is_taken_back_whole():
    outbound = Outbound()
    outbound.put_submit(1, submit(1, parts=3))
    outbound.put_submit(2, submit(2))
    assert outbound.take_back(1)
    assert not outbound.take_back(1)
    assert await drain(outbound) == [("submit", 2)]


@given(st.lists(st.sampled_from(["submit", "leave", "write"]), max_size=40))
def test_no_worker_is_left_running_what_nobody_wants(actions):
    """Whatever the order: every submit that went out whole and is not wanted is followed by its abort."""
    written = asyncio.run(_play(actions))
    kinds = [(frame.WhichOneof("frame"), frame) for frame in written]
    wholly = {f.submit.seq: at for at, (kind, f) in enumerate(kinds) if kind == "submit"}
    aborted = {f.abort.handles[0]: at for at, (kind, f) in enumerate(kinds) if kind == "abort"}
    assert set(aborted) == set(wholly)
    assert all(aborted[seq] > at for seq, at in wholly.items())


async def _play(actions: list[str]) -> list[pb.Up]:
    outbound, wanted, written, seq, waiting = Outbound(), [], [], 0, 0

    async def write() -> None:
        written.append(await asyncio.wait_for(outbound.get(), 5))

    def leave(number: int) -> int:
        """How many frames wait more, or fewer, for it."""
        if outbound.take_back(number):
            return -2
        outbound.put_abort(number, abort(number))
        return 1

    for action in actions:
        if action == "submit":
            seq += 1
            outbound.put_submit(seq, submit(seq, parts=2))
            wanted.append(seq)
            waiting += 2
        elif action == "leave" and wanted:
            waiting += leave(wanted.pop(0))
        elif action == "write" and waiting:
            await write()
            waiting -= 1
    for number in wanted:
        waiting += leave(number)
    for _ in range(waiting):
        await write()
    return written
