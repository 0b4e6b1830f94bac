"""A whole stack as `octavo serve` makes it, in processes of its own, on free ports, ended by pid."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc

START_SECONDS = 120
STOP_SECONDS = 60


class RunningStack:
    """`http` and `grpc` are host:port, `workers` their addresses, `worker_pids` their processes."""

    def __init__(self, model: Path, *, workers: int, worker_arguments: tuple[str, ...] = ()):
        arguments = ("serve", str(model), "--port", "0", "--grpc-port", "0", "--workers", str(workers), "--json")
        command = [sys.executable, "-m", "octavo.cli.main", *arguments, "--", *worker_arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors: list[str] = []
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()
        ready = self._until_ready()
        self.model: str = ready["model"]
        self.http: str = ready["http"]
        self.grpc: str = ready["grpc"]
        self.workers: list[str] = ready["workers"]
        self.worker_pids: list[int] = ready["worker_pids"]
        self.router_pid: int = ready["router_pid"]
        threading.Thread(target=self._process.stdout.read, daemon=True).start()  # type: ignore[union-attr]

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)

    def _until_ready(self) -> dict[str, Any]:
        killer = threading.Timer(START_SECONDS, self._process.kill)
        killer.start()
        try:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                event = json.loads(line)
                if event["event"] == "ready":
                    return event  # type: ignore[no-any-return]
        finally:
            killer.cancel()
        raise AssertionError(f"the stack did not start: {''.join(self.errors)[-2000:]}")

    def stop(self) -> int:
        """Drain it; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def worker_load(address: str) -> pb.Load:
    """What a worker says of itself to a router that has just come."""
    with grpc.insecure_channel(address) as channel:
        hello = pb.Up(hello=pb.Hello(protocol=1, router_id="test"))
        call = worker_pb2_grpc.WorkerStub(channel).Serve(iter_and_wait(hello), timeout=20)
        try:
            return next(frame.load for frame in call if frame.WhichOneof("frame") == "load")
        finally:
            call.cancel()


def iter_and_wait(frame: pb.Up) -> Any:
    """One frame, then silence: the stream stays open until the call is cancelled."""
    yield frame
    threading.Event().wait(20)


def until_at_rest(address: str, seconds: float = 30.0) -> pb.Load:
    """The first account that tells of no work; fails after `seconds`."""
    end = time.monotonic() + seconds
    while (load := worker_load(address)).running or load.waiting or load.has_work:
        assert time.monotonic() < end, f"the worker at {address} does not come to rest: {load}"
    return load
