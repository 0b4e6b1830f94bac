"""Workers that are told to stop, as processes of their own: what runs ends there or goes on elsewhere, and nothing fails (C15)."""

import asyncio
import signal
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from router.request import GenerateRequest
from shared import rpc
from shared.errors import Unavailable
from tests.fakes import fleet_processes as processes
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import until
from tests.fakes.tiny_models import write_tiny_llama

SMALL = (
    "--threads",
    "1",
    "--kv-memory",
    "16MiB",
    "--max-model-len",
    "512",
    "--check-integrity",
    "--served-name",
    "tiny",
)
STREAMS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def asked(number: int, tokens: int) -> GenerateRequest:
    """Half of them greedy, half drawn by a seed."""
    temperature = float(number % 2)
    return request(20 + number, 30, 40, max_tokens=tokens, ignore_eos=True, temperature=temperature, seed=number)


class Watched:
    """Streams that run; `begun` counts those with a token."""

    def __init__(self, router: Router):
        self._router = router
        self.begun = 0

    async def run(self, one: GenerateRequest) -> list[int]:
        generation = await self._router.service.generate(one)
        tokens: list[int] = []
        async for pieces in generation:
            self.begun += not tokens
            tokens += [token for piece in pieces for token in piece.tokens]
        assert generation.usage.completion_tokens == len(tokens)
        assert generation.resumed == ""
        return tokens

    async def begin(self, tokens: int) -> "list[asyncio.Task[list[int]]]":
        self.begun = 0
        tasks = [asyncio.create_task(self.run(asked(number, tokens))) for number in range(STREAMS)]
        await until(lambda: self.begun == STREAMS, "tokens of all")
        return tasks


async def serving(target: str) -> int:
    async with rpc.channel(target) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status


async def test_c15_a_drained_worker_gives_up_no_stream_at_its_deadline_and_ends_those_before_it(
    model: Path, tmp_path: Path
) -> None:
    arguments = ((*SMALL, "--drain-seconds", "0"), (*SMALL, "--drain-seconds", "60"))
    async with processes.workers(model, tmp_path, *arguments) as (hasty, patient):
        async with running_router(
            hasty.address, patient.address, tmp_path=tmp_path, policy="round_robin", resume_wait=60.0
        ) as router:
            await router.ready(workers=2)
            watched = Watched(router)
            quiet = await asyncio.gather(*(watched.run(asked(number, 400)) for number in range(STREAMS)))

            tasks = await watched.begin(400)
            hasty.send(signal.SIGTERM)
            assert await asyncio.gather(*tasks) == quiet
            assert await hasty.ended() == 0
            assert router.metric("resubmits_total", model="tiny", reason="drained") > 0
            assert router.metric("resubmits_total", model="tiny", reason="lost") == 0

            moved = router.metric("resubmits_total", model="tiny", reason="drained")
            tasks = await watched.begin(400)
            patient.send(signal.SIGTERM)
            await until(lambda: router.metric("workers", state="draining") == 1, "the notice")
            assert await serving(patient.address) == health_pb2.HealthCheckResponse.NOT_SERVING
            assert not router.service.ready()
            with pytest.raises(Unavailable, match="no worker serves tiny now"):
                await collect(await router.service.generate(asked(0, 4)))
            assert await asyncio.gather(*tasks) == quiet
            assert await patient.ended() == 0
            assert router.metric("resubmits_total", model="tiny", reason="drained") == moved
