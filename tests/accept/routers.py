"""A worker with a tiny model and a router of several processes on one port and one store (--processes), ended by pid."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.accept.run import ROOT
from tests.e2e.conftest import SMALL
from tests.e2e.stack import until
from tests.fakes.tiny_models import write_tiny_llama

START_SECONDS = 120.0
STOP_SECONDS = 30.0


class Process:
    """A worker or a router; `said` is what it tells once it listens, `address` what stands there under `name`."""

    def __init__(self, module: str, name: str, *arguments: str):
        command = [sys.executable, "-m", module, *arguments, "--log-level", "warning"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.address: str = self.said[name]
        os.set_blocking(self.process.stdout.fileno(), False)

    def ready(self) -> bool:
        """Whether it has said so."""
        assert self.process.poll() is None, "it ended"
        assert self.process.stdout is not None
        return '"ready"' in self.process.stdout.readline()

    def rest(self) -> list[str]:
        """What it has said since, as far as it has come."""
        assert self.process.stdout is not None
        return self.process.stdout.readlines()

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
    """`router` is what watches over its processes, whose ids at the start are `pids`; all share its address and the store."""

    worker: Process
    store: Path
    router: Process

    @property
    def address(self) -> str:
        """Of the HTTP API."""
        return self.router.address

    @property
    def pids(self) -> list[int]:
        """Of the processes, as they were at the start."""
        return list(self.router.said["pids"])


@contextmanager
def host(folder: Path, routers: int) -> Iterator[Host]:
    """A worker, and a router of so many processes on one port."""
    model = write_tiny_llama(folder / "tiny")
    worker = Process("worker.main", "address", "--model", str(model), "--port", "0", "--served-name", "tiny", *SMALL)
    started, store = [worker], folder / "octavo.db"
    try:
        until(worker.ready, "the worker", START_SECONDS)
        flags = ("--http-port", "0", "--grpc-port", "0", "--processes", str(routers), "--store", str(store))
        router = Process("router.main", "http", "--workers", worker.address, *flags)
        started.append(router)
        until(router.ready, "the router", START_SECONDS)
        yield Host(worker=worker, store=store, router=router)
    finally:
        for process in reversed(started):
            process.stop()
