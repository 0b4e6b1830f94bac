"""Workers of the demo model behind routers, all processes of their own, and what may happen to each of them.

Workers are found through a file, as an operator's tool would keep it: a replacement enters it once it serves, and what is replaced leaves
it before it is told to stop. Routers are known to callers by a list, kept in the same way.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx
from prometheus_client.parser import text_string_to_metric_families

from octavo.client.aio import AsyncClient
from tests.fakes.fleet_processes import Child, start_router, start_worker

WORKERS, ROUTERS = 3, 2
STOPPED_SECONDS = 9.0  # a stopped worker's streams go on elsewhere after 5
DRAIN_SECONDS = "3"  # what has not ended by then goes on elsewhere
ANSWER_SECONDS = 240.0
SMALL = ("--threads", "1", "--kv-memory", "192MiB", "--max-model-len", "512", "--max-running", "64")


@dataclass(frozen=True, kw_only=True, eq=False)
class Door:
    """A router, and a caller's connection to it."""

    child: Child
    client: AsyncClient

    @property
    def http(self) -> str:
        """Of its HTTP API."""
        return self.child.said["http"]


@dataclass(kw_only=True)
class Site:
    """Routers over the workers in `file`, which log to `log`. `faults` are (kind, begin, end)."""

    model: Path
    file: Path
    log: IO[str]
    doors: list[Door] = field(default_factory=list)
    workers: list[Child] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(default_factory=list)

    async def hire(self) -> Child:
        """One more worker, which serves and stands in the file."""
        child = await start_worker(
            self.model, *SMALL, "--drain-seconds", DRAIN_SECONDS, "--metrics-port", "0", "--log-level", "warning"
        )
        self.workers.append(child)
        await child.ready()
        self.write()
        return child

    def write(self) -> None:
        """The file, all at once."""
        beside = self.file.with_suffix(".new")
        beside.write_text("".join(f"{child.address}\n" for child in self.workers))
        beside.rename(self.file)

    async def kill(self, number: int) -> None:
        """kill -9, and a replacement."""
        child = self.workers[number]
        await child.kill()
        self.workers.remove(child)
        await self.hire()

    async def stop(self, number: int) -> None:
        """SIGSTOP for a while."""
        child = self.workers[number]
        child.send(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_SECONDS)
        child.send(signal.SIGCONT)

    async def roll(self, number: int) -> None:
        """A replacement, then SIGTERM to the oldest; `number` is of no matter."""
        child = self.workers[0]
        await self.hire()
        self.workers.remove(child)
        self.write()
        child.send(signal.SIGTERM)
        assert await child.ended() == 0, f"worker {number} did not drain well"

    async def open(self) -> None:
        """One more router, which serves and is known to callers."""
        child = await start_router("--workers-file", str(self.file), "--log-level", "info", log=self.log)
        try:
            await child.ready()
        except BaseException:
            await child.kill()
            raise
        self.doors.append(Door(child=child, client=AsyncClient(child.said["grpc"], timeout=ANSWER_SECONDS)))

    async def close(self, door: Door) -> None:
        """At once, whatever it does."""
        await door.child.kill()
        await door.client.aclose()

    async def kill_router(self, number: int) -> None:
        """kill -9, and then a replacement."""
        door = self.doors.pop(number % len(self.doors))
        await door.child.kill()
        await self.open()
        await door.client.aclose()

    async def roll_router(self, number: int) -> None:
        """A replacement, then SIGTERM to the oldest; `number` is of no matter."""
        await self.open()
        door = self.doors.pop(0)
        door.child.send(signal.SIGTERM)
        assert await door.child.ended() == 0, "a router did not drain well"
        await door.client.aclose()

    async def routers(self) -> dict[str, float]:
        """The routers' metrics, summed by name and labels."""
        summed: dict[str, float] = {}
        for door in self.doors:
            for key, value in (await self.samples(door.http)).items():
                summed[key] = summed.get(key, 0.0) + value
        return summed

    async def samples(self, address: str) -> dict[str, float]:
        """Every metric, by its name and labels."""
        async with httpx.AsyncClient(timeout=30) as client:
            text = (await client.get(f"http://{address}/metrics")).text
        families = text_string_to_metric_families(text)
        return {_key(one.name, one.labels): one.value for family in families for one in family.samples}

    async def left(self) -> list[str]:
        """What is not back to nothing."""
        router = await self.routers()
        counts = ("octavo_router_requests_in_flight", "octavo_router_requests_queued")
        left = [key for key, value in router.items() if key.startswith(counts) and value]
        for child in self.workers:
            worker = await self.samples(child.said["metrics"])
            free, all_of_them = worker["octavo_worker_kv_blocks state=free"], worker["octavo_worker_kv_blocks_capacity"]
            left += [f"{child.address} {name}" for name in ("running", "waiting") if worker[f"octavo_worker_{name}"]]
            left += [f"{child.address} {all_of_them - free} blocks"] if free != all_of_them else []
        return left


def _key(name: str, labels: Mapping[str, str]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in sorted(labels.items()) if key != "model")])


@asynccontextmanager
async def site(model: Path, folder: Path) -> AsyncIterator[Site]:
    """With all its workers and routers. What routers log is in `folder`/router.log."""
    file = folder / "workers"
    file.write_text("")
    with (folder / "router.log").open("w") as log:
        running = Site(model=model, file=file, log=log)
        try:
            await asyncio.gather(*(running.hire() for _ in range(WORKERS)))
            for _ in range(ROUTERS):
                await running.open()
            yield running
        finally:
            await asyncio.gather(*map(running.close, running.doors))
            await asyncio.gather(*(child.kill() for child in running.workers))
