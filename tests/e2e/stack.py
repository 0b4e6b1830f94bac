"""A whole stack as `octavo serve` makes it, in processes of its own, on free ports, ended by pid."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from octavo.client.sync import Client
from protos import worker_pb2 as pb
from protos import worker_pb2_grpc

START_SECONDS = 120
STOP_SECONDS = 60
POLL_SECONDS = 0.02

Event = dict[str, Any]


def alive(pid: int) -> bool:
    """Whether a process of this id runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Polls until `condition` gives something true, and returns that; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(POLL_SECONDS)
    return value


class Serve:
    """`octavo serve --json` as a process. `events` and `errors` grow as it tells them."""

    def __init__(self, *arguments: str, worker_arguments: Sequence[str] = ()):
        command = [sys.executable, "-m", "octavo.cli.main", "serve", *arguments, "--json", "--", *worker_arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        self.events: list[Event] = []
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def told(self, kind: str, text: str = "") -> Event | None:
        """The first event of this kind whose text holds `text`, if there was one."""
        events = [event for event in self.events if event["event"] == kind and text in str(event.get("text", ""))]
        return events[0] if events else None

    def until_told(self, kind: str, text: str = "") -> Event:
        """That event, once it comes. Fails where the process ends before."""

        def look() -> Event | None:
            ended = self.process.poll() is not None
            event = self.told(kind, text)
            assert event or not ended, f"ended without {kind} {text!r}: {self.said()}"
            return event

        event: Event = until(look, f"{kind} {text!r}", START_SECONDS)
        return event

    def said(self) -> str:
        """All of it, for a failure's message."""
        return f"{self.events}\n{''.join(self.errors)[-2000:]}"

    def terminate(self) -> None:
        """Asks for a drain; asked again, for the end."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status, all that it told having been read; kills what does not end."""
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        for reader in self._readers:
            reader.join(STOP_SECONDS)
        return status

    def stop(self) -> int:
        """Drains it; its exit status."""
        self.terminate()
        return self.wait()


class RunningStack(Serve):
    """A stack that is up. `http` and `grpc` are host:port, `workers` their addresses, `worker_pids` their processes."""

    def __init__(
        self,
        model: Path,
        *,
        workers: int,
        worker_arguments: Sequence[str] = (),
        arguments: Sequence[str] = ("--port", "0"),
    ):
        super().__init__(
            *(str(model), "--grpc-port", "0", "--workers", str(workers), *arguments), worker_arguments=worker_arguments
        )
        try:
            ready = self.until_told("ready")
        except BaseException:
            self.process.kill()
            raise
        self.model: str = ready["model"]
        self.http: str = ready["http"]
        self.grpc: str = ready["grpc"]
        self.workers: list[str] = ready["workers"]
        self.worker_pids: list[int] = ready["worker_pids"]
        self.router_pid: int = ready["router_pid"]
        # Ready means that one worker serves; tests of several want the router to know them all.
        with Client(self.grpc, timeout=START_SECONDS) as client:
            until(
                lambda: [model.workers for model in client.models() if not model.parent] == [workers],
                "the router to know every worker",
            )

    @property
    def pids(self) -> list[int]:
        """The supervisor's and its children's, as they were at the start."""
        return [self.process.pid, self.router_pid, *self.worker_pids]


def worker_load(address: str) -> pb.Load:
    """What a worker says of itself to a router that has just come."""
    left = threading.Event()
    with grpc.insecure_channel(address) as channel:
        call = worker_pb2_grpc.WorkerStub(channel).Serve(_hello_and_silence(left), timeout=20)
        try:
            return next(frame.load for frame in call if frame.WhichOneof("frame") == "load")
        finally:
            left.set()
            call.cancel()


def _hello_and_silence(left: threading.Event) -> Iterator[pb.Up]:
    """One frame, then nothing: the stream stays open until it is left."""
    yield pb.Up(hello=pb.Hello(protocol=1, router_id="test"))
    left.wait(20)


def until_at_rest(address: str, seconds: float = 30.0) -> pb.Load:
    """The first account that tells of no work; fails after `seconds`."""
    end = time.monotonic() + seconds
    while (load := worker_load(address)).running or load.waiting or load.has_work:
        assert time.monotonic() < end, f"the worker at {address} does not come to rest: {load}"
    return load
