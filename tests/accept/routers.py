"""A worker with a tiny model and several router processes over one store, each on a port of its own, ended by pid."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.accept.run import ROOT
from tests.e2e.conftest import SMALL
from tests.e2e.stack import until
from tests.fakes.tiny_models import write_tiny_llama

START_SECONDS = 120.0
STOP_SECONDS = 30.0


class Process:
    """A worker or a router; `address` is what it tells under `name` once it listens."""

    def __init__(self, module: str, name: str, *arguments: str):
        command = [sys.executable, "-m", module, *arguments, "--log-level", "warning"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())[name]
        os.set_blocking(self.process.stdout.fileno(), False)

    def ready(self) -> bool:
        """Whether it has said so."""
        assert self.process.poll() is None, "it ended"
        assert self.process.stdout is not None
        return '"ready"' in self.process.stdout.readline()

    def kill(self) -> None:
        """At once, with nothing said to anyone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """As an operator does."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


@dataclass(kw_only=True)
class Host:
    """`routers` that live; more may be started."""

    worker: Process
    store: Path
    routers: list[Process] = field(default_factory=list)

    def start_router(self) -> Process:
        """One more, ready."""
        ports = ("--http-port", "0", "--grpc-port", "0")
        router = Process("router.main", "http", "--workers", self.worker.address, *ports, "--store", str(self.store))
        self.routers.append(router)
        until(router.ready, "a router", START_SECONDS)
        return router


@contextmanager
def host(folder: Path, routers: int) -> Iterator[Host]:
    """A worker and so many routers."""
    model = write_tiny_llama(folder / "tiny")
    worker = Process("worker.main", "address", "--model", str(model), "--port", "0", "--served-name", "tiny", *SMALL)
    running = Host(worker=worker, store=folder / "octavo.db")
    try:
        until(worker.ready, "the worker", START_SECONDS)
        for _ in range(routers):
            running.start_router()
        yield running
    finally:
        for process in (*running.routers, worker):
            process.stop()
