"""A router's view of the prefix cache, from snapshots and deltas, is the worker's truth."""

import random

from protos import worker_pb2 as pb
from shared import rpc
from shared.types import AbortReason, Tenant
from shared.wire import worker as wire
from tests.fakes.engine import FakeWorker, PlayedRouter, fake_worker, played_router, prompt, token_request
from tests.fakes.scripted_worker import until


class View:
    """What a router makes of KV frames, which it checks as it takes them."""

    def __init__(self, router: PlayedRouter):
        self.router = router
        self.hashes: set[bytes] = set()
        self.epoch = 0
        self.sequence: int | None = None
        self._taken = 0
        self._gathered: set[bytes] = set()

    def take(self) -> set[bytes]:
        """All frames that have come."""
        for frame in self.router.frames[self._taken :]:
            self._taken += 1
            if frame.HasField("kv_snapshot"):
                self._piece(wire.kv_snapshot_from_pb(frame.kv_snapshot))
            elif frame.HasField("kv_delta"):
                self._delta(wire.kv_delta_from_pb(frame.kv_delta))
        return self.hashes

    def _piece(self, piece):
        self._gathered |= set(piece.hashes)
        if piece.last:
            self.hashes, self._gathered = self._gathered, set()
            self.epoch, self.sequence = piece.epoch, piece.sequence

    def _delta(self, delta):
        if self.sequence is None:
            return
        assert not self._gathered, "a delta among the pieces of a snapshot"
        assert (delta.epoch, delta.sequence) == (self.epoch, self.sequence + 1), "a gap"
        assert not set(delta.added) & self.hashes, "added twice"
        assert set(delta.removed) <= self.hashes, "removed what was not there"
        self.hashes = (self.hashes | set(delta.added)) - set(delta.removed)
        self.sequence += 1


def truth(worker: FakeWorker) -> set[bytes]:
    """While the engine is idle, and only then."""
    assert not worker.hub.engine.busy
    return set(worker.hub.engine._engine._scheduler.published())


async def agreed(worker: FakeWorker, view: View) -> None:
    await until(lambda: not worker.hub.engine.busy and view.take() == truth(worker), "the view to be the truth")


async def test_a_snapshot_and_what_follows_equal_the_truth_under_load():
    random_ = random.Random(7)
    async with fake_worker(blocks=40) as worker, played_router(worker, kv_events=True) as router:
        view = View(router)
        for seq in range(1, 61):
            length = random_.randrange(1, 150)
            await router.submit(token_request(seq, seq, first=random_.randrange(12), length=length, max_tokens=20))
            if random_.random() < 0.2:
                await router.send(snapshot_request=pb.SnapshotRequest())
            if random_.random() < 0.3:
                await router.call.write(wire.abort_to_pb([random_.randint(1, seq)], AbortReason.CLIENT))
            if seq > 20:
                await until(lambda before=seq - 20: router.finish(before) or router.of("reject"), "an end")
                view.take()
        await until(lambda: len(router.of("finish")) + len(router.of("reject")) == 60, "all ends")
        await agreed(worker, view)
        assert view.epoch == worker.hub.epoch
        assert router.of("kv_delta")
        assert any(delta.removed for delta in router.of("kv_delta")), "nothing was evicted: the pool is too large"


async def test_a_flush_is_told_as_removals():
    async with fake_worker() as worker, played_router(worker, kv_events=True) as router:
        await router.send(snapshot_request=pb.SnapshotRequest())
        await router.submit(token_request(1, 1, length=130))
        await router.finished(1)
        view = View(router)
        await agreed(worker, view)
        assert len(view.hashes) == 2
        assert await worker.hub.engine.flush_cache() == 8
        await agreed(worker, view)
        assert view.hashes == set()


async def test_a_router_that_asked_for_no_events_gets_none():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.submit(token_request(1, 1, length=200))
        await router.send(snapshot_request=pb.SnapshotRequest())
        await router.finished(1)
        await router.load(lambda load: not load.has_work)
        assert not router.of("kv_delta")
        assert not router.of("kv_snapshot")


async def test_a_snapshot_of_nothing_is_one_empty_piece():
    async with fake_worker() as worker, played_router(worker, kv_events=True) as router:
        await router.send(snapshot_request=pb.SnapshotRequest())
        (piece,) = await router.came("kv_snapshot")
        assert (piece.hashes, piece.last) == (b"", True)


async def test_a_large_snapshot_comes_in_pieces_that_fit_a_frame():
    info = {"max_model_len": 1 << 20, "max_running": 4}
    async with (
        fake_worker(info=info, blocks=40_000, step_tokens=8_192) as worker,
        played_router(worker, kv_events=True) as router,
    ):
        view = View(router)
        for seq in range(1, 6):
            tenant = Tenant(id="t", salt=bytes([seq]))
            await router.submit(token_request(seq, seq, length=64_000, max_tokens=1, tenant=tenant))
        await router.finished(*range(1, 6))
        await router.send(snapshot_request=pb.SnapshotRequest())
        await until(lambda: any(piece.last for piece in router.of("kv_snapshot")), "the last piece")
        await agreed(worker, view)
        assert len(view.hashes) == 5 * 1_000
        assert len(router.of("kv_snapshot")) == 2
        assert max(frame.ByteSize() for frame in router.frames) <= rpc.FRAME_LIMIT


async def test_a_router_that_comes_back_finds_a_gap_where_it_missed_something():
    async with fake_worker() as worker:
        async with played_router(worker, kv_events=True) as router:
            await router.send(snapshot_request=pb.SnapshotRequest())
            await router.submit(token_request(1, 1, length=130))
            await router.finished(1)
            view = View(router)
            await agreed(worker, view)
        knew = view.sequence
        async with played_router(worker) as other:
            await other.submit(token_request(1, 1, first=9, length=130))
            await other.finished(1)
        async with played_router(worker, kv_events=True) as again:
            await again.submit(token_request(1, 1, first=17, length=130))
            (first, *_) = await again.came("kv_delta")
            assert first.epoch == worker.hub.epoch
            assert first.sequence != knew + 1


async def test_each_start_has_its_own_epoch():
    async with fake_worker() as one, fake_worker() as two:
        assert one.hub.epoch != two.hub.epoch


def test_prompts_share_blocks_only_where_they_begin_alike():
    assert prompt(64, 1) != prompt(64, 2)
