"""The processes of a measurement: the router alone on core 0, whatever asks and pretends on core 1."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.peers import proc

ROUTER_CORE, OTHER_CORE = 0, 1
STOP_SECONDS = 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


def pin(core: int) -> None:
    """This process, and what it starts from now on."""
    os.sched_setaffinity(0, {core})


@dataclass(frozen=True, kw_only=True, slots=True)
class Rig:
    """A router that serves, with its addresses."""

    router: "subprocess.Popen[str]"
    http: tuple[str, int]
    grpc: str

    def cpu_seconds(self) -> float:
        """Of the router so far."""
        return proc.seconds([self.router.pid])

    def resident(self) -> int:
        """Bytes of the router now."""
        return int(Path(f"/proc/{self.router.pid}/statm").read_text().split()[1]) * _PAGE


def _start(core: int, *command: str, environ: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
        preexec_fn=lambda: pin(core),  # noqa: PLW1509 - no thread runs here yet
    )


def _told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    return json.loads(line)


def _stop(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(STOP_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def rig(*, workers: int, step_ms: float, router: Sequence[str] = ()) -> Iterator[Rig]:
    """Simulated workers and a router before them, with these further flags."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {"OCTAVO_CACHE": folder}
        simulated = ("-m", "octavo.bench.router.worker", "--workers", str(workers), "--step-ms", str(step_ms))
        started = [_start(OTHER_CORE, *simulated, environ=environ)]
        try:
            flags = ["--workers", ",".join(_told(started[0])["targets"]), "--http-port", "0", "--grpc-port", "0"]
            command = ["-m", "router.main", *flags, "--log-level", "warning", *router]
            started.append(_start(ROUTER_CORE, *command, environ=environ))
            listening = _told(started[1])
            assert _told(started[1])["event"] == "ready"
            host, _, port = listening["http"].rpartition(":")
            yield Rig(router=started[1], http=(host, int(port)), grpc=listening["grpc"])
        finally:
            for process in reversed(started):
                _stop(process)
