"""The images are built for real, and the compose stack of a router and two workers answers through them."""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.soak.conftest import VERSION, Containers

pytestmark = pytest.mark.soak

ROUTER = f"localhost/octavo-router:{VERSION}"
WORKER = f"localhost/octavo-worker:{VERSION}"
VOLUME = "octavo_models"
MODEL = "smollm2-135m-instruct"
READY_SECONDS = 240
ANSWER_SECONDS = 120


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_routers_image_holds_no_torch(containers: Containers) -> None:
    script = "import importlib.util as u, router.main; print([n for n in ('torch', 'triton', 'safetensors', 'numpy') if u.find_spec(n)])"
    assert containers.podman("run", "--rm", "--entrypoint", "python", ROUTER, "-c", script).stdout.strip() == "[]"
    files = containers.podman("run", "--rm", "--entrypoint", "find", ROUTER, "/opt", "/usr", "-iname", "*torch*").stdout
    assert not [line for line in files.splitlines() if "site-packages/torch" in line or "libtorch" in line], files


@pytest.mark.parametrize("image", [ROUTER, WORKER])
def test_an_image_runs_as_nobody_and_says_its_version(containers: Containers, image: str) -> None:
    assert containers.podman("run", "--rm", "--entrypoint", "id", image, "-u").stdout.strip() == "10001"
    confined = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges")
    assert VERSION in containers.podman("run", "--rm", *confined, image, "--version").stdout


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The running compose stack."""

    containers: Containers
    url: str


def _pull_the_model(containers: Containers) -> None:
    """What the service `model` does, here with the machine's own network and certificates, which the package index is reached by."""
    mounts = [flag for mount in containers.mounts for flag in ("-v", mount)]
    containers.podman("volume", "create", "--ignore", VOLUME, check=False)
    confined = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--network", "host", "-v", f"{VOLUME}:/models")
    containers.podman("run", "--rm", *confined, *mounts, "--entrypoint", "octavo", WORKER, "pull", "demo", timeout=600)


def _wait_until_ready(stack: Stack) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{stack.url}/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    logs = stack.containers.compose("logs", check=False)
    raise AssertionError(f"not ready within {READY_SECONDS} s\n{logs[-6000:]}")


@pytest.fixture(scope="module")
def stack(containers: Containers) -> Iterator[Stack]:
    containers.compose("down", "-v", check=False)  # what an interrupted run may have left
    _pull_the_model(containers)
    variables = {
        "OCTAVO_HTTP_PORT": str(_free_port()),
        "OCTAVO_GRPC_PORT": str(_free_port()),
        "OCTAVO_WORKER_THREADS": "1",
    }
    running = Stack(containers=containers, url=f"http://127.0.0.1:{variables['OCTAVO_HTTP_PORT']}")
    try:
        containers.compose("up", "-d", "--no-build", timeout=600, **variables)
        _wait_until_ready(running)
        yield running
    finally:
        containers.compose("down", "-v", check=False, **variables)


def _post(stack: Stack, path: str, body: dict[str, Any]) -> httpx.Response:
    """As clients do: what is overloaded or unavailable is asked again. Each refusal is printed, and so reported where the test fails."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        answer = httpx.post(f"{stack.url}{path}", json={"model": MODEL, "temperature": 0, **body}, timeout=120)
        if answer.status_code not in (429, 503) or time.monotonic() > deadline:
            return answer
        print(f"{path}: {answer.status_code} {answer.text}")
        time.sleep(1)


def test_the_stack_answers_a_completion(stack: Stack) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    answer = _post(stack, "/v1/chat/completions", {"messages": [question], "max_tokens": 24})
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]


def test_the_router_sees_both_workers(stack: Stack) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while 'octavo_router_workers{state="ready"} 2.0' not in (
        seen := httpx.get(f"{stack.url}/metrics", timeout=10).text
    ):
        assert time.monotonic() < deadline, seen
        time.sleep(1)


@pytest.mark.parametrize("service", ["router", "worker-1", "worker-2"])
def test_a_health_check_passes_while_it_serves(stack: Stack, service: str) -> None:
    name = f"octavo_{service}_1"
    deadline = time.monotonic() + READY_SECONDS
    while (done := stack.containers.podman("healthcheck", "run", name, check=False)).returncode != 0:
        assert time.monotonic() < deadline, done.stdout + done.stderr
        time.sleep(1)


def test_one_worker_stopped_leaves_the_stack_answering(stack: Stack) -> None:
    stack.containers.podman("stop", "--time", "60", "octavo_worker-1_1", timeout=120)
    state = json.loads(stack.containers.podman("inspect", "octavo_worker-1_1").stdout)[0]["State"]
    assert state["ExitCode"] == 0, state
    answer = _post(stack, "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
