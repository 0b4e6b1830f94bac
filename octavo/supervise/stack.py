"""Workers and the router before them, as one thing that starts and stops."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.supervise.ports import is_free, port_of, with_port
from shared.supervise.process import Command, Event
from shared.supervise.supervised import Report, Supervised
from worker import auto

LOOPBACK = "127.0.0.1"
SPARE_SECONDS = 5.0  # beyond a child's own drain, before it is killed


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """What to serve and where. Port 0 takes a free one. `worker_arguments` go to each worker as they are; `store` is the tenants' database,
    None where the router's own settings say it or there is none."""

    model: str
    served_name: str
    host: str = LOOPBACK
    allow_open: bool = False  # may listen elsewhere than on loopback though nobody needs a key
    port: int = 8000
    grpc_port: int = 50051
    workers: int = 1
    drain_seconds: float = 30.0
    log_level: str = "warning"
    worker_arguments: tuple[str, ...] = ()
    store: Path | None = None
    admin_listen: str | None = None  # host:port of the operators' API, which needs a store
    admin_grpc_listen: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """Where a stack that is up listens, and its processes."""

    http: str
    grpc: str
    workers: tuple[str, ...]
    router_pid: int | None
    worker_pids: tuple[int | None, ...]


def shared_out(workers: int, cores: int) -> tuple[str, ...]:
    """The flags that share `cores`, those that this process really gets, and memory among several workers; one alone chooses for itself."""
    if workers == 1:
        return ()
    return ("--threads", str(max(1, cores // workers)), "--memory-share", f"{1 / workers:.4f}")


def worker_command(config: StackConfig, listening: Event | None) -> Command:
    """How one worker is run: anywhere at first, and where it was before after that. Given arguments come last, so that they win."""
    port = "0" if listening is None else str(port_of(listening["address"]))
    arguments = ("--model", config.model, "--served-name", config.served_name, "--host", LOOPBACK, "--port", port)
    common = ("--drain-seconds", str(config.drain_seconds), "--log-level", config.log_level)
    parts = shared_out(config.workers, auto.usable(*auto.cores()))
    return Command(
        module="worker.main",
        arguments=(*arguments, *common, *parts, *config.worker_arguments),
        orphan_seconds=config.drain_seconds + SPARE_SECONDS,
    )


def router_command(config: StackConfig, workers: Sequence[str], listening: Event | None) -> Command:
    """How the router is run: at the ports wanted at first, and at those that it got after that."""
    ports = (config.port, config.grpc_port)
    if listening is not None:
        ports = (port_of(listening["http"]), port_of(listening["grpc"]))
    return Command(
        module="router.main",
        arguments=(
            *("--workers", ",".join(workers)),
            *("--host", config.host, "--http-port", str(ports[0]), "--grpc-port", str(ports[1])),
            *("--drain-seconds", str(config.drain_seconds), "--log-level", config.log_level),
            *(("--allow-open",) if config.allow_open else ()),
            *(("--store", str(config.store)) if config.store else ()),
            *(("--admin-listen", config.admin_listen) if config.admin_listen else ()),
            *(("--admin-grpc-listen", config.admin_grpc_listen) if config.admin_grpc_listen else ()),
        ),
        orphan_seconds=config.drain_seconds + SPARE_SECONDS,
    )


async def _first(*futures: "asyncio.Future[Any]", timeout: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


class Stack:
    """Starts workers, then the router; keeps them running; stops the router first, so that nothing new reaches a worker that drains."""

    def __init__(self, config: StackConfig, report: Report):
        self._config = config
        self._report = report
        self._workers: list[Supervised] = []
        self._router: Supervised | None = None
        self._runs: dict[Supervised, asyncio.Task[None]] = {}

    def _supervise(self, child: Supervised) -> Supervised:
        self._runs[child] = asyncio.create_task(child.run())
        return child

    async def _expect(self, futures: "Sequence[asyncio.Future[Event]]") -> list[Event]:
        """What the children say, once each has. Raises StartFailed where one ends instead."""
        pending = set(futures)
        runs = set(self._runs.values())
        while pending:
            await _first(*pending, *runs)
            for run in runs:
                if run.done():
                    run.result()
            runs = {run for run in runs if not run.done()}
            pending = {future for future in pending if not future.done()}
        return [future.result() for future in futures]

    def _start_workers(self) -> None:
        config = self._config
        names = ["worker"] if config.workers == 1 else [f"worker {i + 1}" for i in range(config.workers)]
        for name in names:
            child = Supervised(name, lambda said: worker_command(config, said), self._report)
            self._workers.append(self._supervise(child))

    async def start(self) -> Endpoints:
        """Returns once every worker and the router are ready. Raises StartFailed, or OSError for a host that is not ours."""
        self._report.state(f"loading {self._config.served_name}")
        self._start_workers()
        said = await self._expect([worker.listening for worker in self._workers])
        addresses = tuple(str(event["address"]) for event in said)
        config = self._config
        router = Supervised("router", lambda event: router_command(config, addresses, event), self._report)
        self._router = self._supervise(router)
        at, *_ = await self._expect([router.listening, router.ready, *(worker.ready for worker in self._workers)])
        return Endpoints(
            http=str(at["http"]),
            grpc=str(at["grpc"]),
            workers=addresses,
            router_pid=router.pid,
            worker_pids=tuple(worker.pid for worker in self._workers),
        )

    async def watch(self) -> None:
        """Raises what ends a child's supervision, which nothing should before `stop`."""
        await _first(*self._runs.values())
        for run in self._runs.values():
            if run.done():
                run.result()

    async def _stop(self, children: Sequence[Supervised], now: asyncio.Event) -> None:
        """Drains these children; kills what is not gone in time, or all at once as soon as `now` is set."""
        runs = [self._runs[child] for child in children]
        for child in children:
            child.stop()
        hurry = asyncio.create_task(now.wait())
        ended = asyncio.gather(*runs, return_exceptions=True)
        limit = self._config.drain_seconds + SPARE_SECONDS
        await _first(hurry, ended, timeout=limit)
        hurry.cancel()
        if not ended.done():
            for child in children:
                child.stop(signal.SIGKILL)
        await ended

    async def stop(self, now: asyncio.Event | None = None) -> None:
        """Returns when no child is left. Setting `now` cuts the drain short."""
        now = now or asyncio.Event()
        if self._router is not None:
            await self._stop([self._router], now)
        await self._stop(self._workers, now)


def free_ports(config: StackConfig, report: Report) -> StackConfig:
    """The configuration with port 0 for each port that is taken, which the user is told. Raises OSError for a host that is not ours."""
    chosen = {"port": config.port, "grpc_port": config.grpc_port}
    for name, port in chosen.items():
        if port and not is_free(config.host, port):
            report.notice(f"{with_port(config.host, port)} is taken; using a free port instead")
            chosen[name] = 0
    return replace(config, port=chosen["port"], grpc_port=chosen["grpc_port"])
