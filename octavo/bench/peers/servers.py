"""The two servers with HTTP, under the same client."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.peers import proc
from octavo.bench.peers.processes import Program, ProgramFailed, Running, command_line, free_port, serving
from octavo.bench.peers.programs import Figures, Load, Runner, Setting, helper_python

_HTTP_S = 5.0
_NAMES = {
    "output_throughput": "out_tok_s",
    "median_ttft_ms": "ttft_p50_ms",
    "p99_ttft_ms": "ttft_p99_ms",
    "median_tpot_ms": "tpot_p50_ms",
    "p99_tpot_ms": "tpot_p99_ms",
    "median_itl_ms": "itl_p50_ms",
    "p99_itl_ms": "itl_p99_ms",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """Where one listens, the name that it gives the model, and what its processes are for ("router", "worker", ...)."""

    url: str
    model: str
    roles: Callable[[], Mapping[str, tuple[int, ...]]]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=_HTTP_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def vllm(setting: Setting, timeout: float) -> Iterator[Server]:
    """vLLM's own: the process that serves HTTP is its router, what that starts is its worker."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = Program(command=command_line(setting.scripts / "vllm_server.sh"), env={**setting.env, "PORT": str(port)})

    def roles(running: Running) -> Mapping[str, tuple[int, ...]]:
        front, *rest = proc.tree(running.pid)
        return {"router": (front,), "worker": tuple(rest)}

    with serving(program, lambda _: _answers(url), timeout) as running:
        yield Server(url=url, model="m", roles=lambda: roles(running))


@contextmanager
def octavo(setting: Setting, timeout: float) -> Iterator[Server]:
    """`octavo serve`, with a router and one worker."""
    flags = ("--name", "m", "--port", "0", "--grpc-port", "0", "--json", "--", "--no-prefix-cache", *setting.engine)
    command = command_line(sys.executable, "-P", "-m", "octavo.cli.main", "serve", setting.model, *flags)
    with serving(Program(command=command), lambda running: _ready(running) is not None, timeout) as running:
        told = _ready(running)
        if told is None:
            raise ProgramFailed("it is ready and does not say where")
        pids = {"router": (told["router_pid"],), "worker": tuple(told["worker_pids"])}
        own = [pid for each in pids.values() for pid in each]
        others = tuple(pid for pid in proc.tree(running.pid) if pid not in own)
        yield Server(url=f"http://{told['http']}", model="m", roles=lambda: {**pids, "supervisor": others})


def _ready(running: Running) -> Figures | None:
    """The event by which it says that it is up, if it has."""
    for line in running.said().splitlines():
        event: Figures = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "ready":
            return event
    return None


SERVERS: Mapping[str, Callable[[Setting, float], AbstractContextManager[Server]]] = {"octavo": octavo, "vllm": vllm}


def under(server: Server, setting: Setting, load: Load, run: Runner, out: Path) -> Figures:
    """The client's figures, and how many cores each part kept busy meanwhile: the client's own from its start to its end."""
    script = setting.scripts / "client.py"
    where = ("--base", server.url, "--model", server.model, "--workload", setting.workload, "--out", out)
    command = (helper_python(setting), script, *where, "--concurrency", load.concurrency, "--n", load.requests)
    out.unlink(missing_ok=True)
    before = {role: proc.seconds(pids) for role, pids in server.roles().items()}
    ended = run(Program(command=command_line(*command)))
    spent = {role: proc.seconds(pids) - before.get(role, 0.0) for role, pids in server.roles().items()}
    told = json.loads(out.read_text())
    if told["out_tok"] != told["expected"]:
        raise ProgramFailed(f"{told['out_tok']} tokens came, {told['expected']} were asked for")
    busy = {"client": ended.cpu_s, **spent}
    return {
        "concurrency": load.concurrency,
        "requests": load.requests,
        **{name: round(told[theirs], 3) for name, theirs in _NAMES.items()},
        "cores_busy": {role: round(seconds / ended.seconds, 3) for role, seconds in busy.items()},
        "cpu_share": {role: round(seconds / sum(busy.values()), 4) for role, seconds in busy.items()},
    }
