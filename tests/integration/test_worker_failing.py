"""A worker whose steps fail: one is that step's requests' trouble, a row of them the worker's."""

import grpc

from shared.types import FinishReason
from tests.fakes.engine import QUICK, FakeWorker, PlayedRouter, fake_worker, played_router, token_request
from worker.plan import StepPlan

MOST = QUICK.failed_steps


def broken(plan: StepPlan) -> Exception:
    return RuntimeError("the device is gone")


def whole(plan: StepPlan) -> None:
    return None


async def ends(worker: FakeWorker, router: PlayedRouter, seqs: range, *, fail: bool) -> list[FinishReason]:
    """How requests of one step each end, one after the other."""
    worker.gate.fails = broken if fail else whole
    reasons = []
    for seq in seqs:
        await router.submit(token_request(seq, seq, max_tokens=1))
        (end,) = await router.finished(seq)
        reasons.append(end.reason)
    return reasons


async def test_failed_steps_with_a_good_one_between_end_their_requests_alone() -> None:
    async with fake_worker() as worker, played_router(worker) as router:
        few = MOST - 1
        assert await ends(worker, router, range(1, MOST), fail=True) == [FinishReason.ERROR] * few
        assert await ends(worker, router, range(MOST, MOST + 1), fail=False) == [FinishReason.LENGTH]
        assert await ends(worker, router, range(MOST + 1, 2 * MOST), fail=True) == [FinishReason.ERROR] * few
        assert worker.servicer.serving()
        assert not worker.hub.dead.done()
        assert worker.metric("failed_steps_total") == 2 * few
        await worker.whole()


async def test_a_row_of_failed_steps_makes_the_worker_give_itself_up() -> None:
    async with fake_worker() as worker, played_router(worker) as router:
        await ends(worker, router, range(1, MOST), fail=True)
        assert worker.servicer.serving()
        await router.submit(token_request(MOST, MOST, max_tokens=1))
        assert await router.ended() is grpc.StatusCode.UNAVAILABLE
        assert not worker.servicer.serving()
        assert "have all failed" in str(worker.hub.dead.result())
        async with played_router(worker) as another:
            assert await another.ended() is grpc.StatusCode.UNAVAILABLE
