"""`octavo tenant`, `key` and `usage` beside a running router: what they change holds there, and what it charged they show."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.conftest import ROOT
from tests.fakes.scripted_worker import ScriptedWorker, echo

BOUND = 30.0  # seconds
ASK = {"prompt": [5, 6, 7], "max_tokens": 3}
PIPE = asyncio.subprocess.PIPE


def _environ(store: Path) -> dict[str, str]:
    cache = str(store.parent)
    return {**os.environ, "OCTAVO_CACHE": cache, "PYTHONPATH": str(ROOT), "OCTAVO_ROUTER_STORE": str(store)}


async def _octavo(store: Path, *arguments: str) -> str:
    """What a command prints, as a process of its own."""
    command = (sys.executable, "-m", "octavo.cli.main", *arguments)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=_environ(store), stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(BOUND):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def _log(store: Path) -> Path:
    return Path(f"{store}.log")


@asynccontextmanager
async def _router(store: Path, worker: str) -> AsyncIterator[httpx.AsyncClient]:
    """A router that is ready; its log is in `_log` afterwards."""
    flags = ("--http-port", "0", "--grpc-port", "0", "--workers", worker, "--log-level", "debug")
    command = (sys.executable, "-m", "router.main", *flags)
    log = os.open(_log(store), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=_environ(store), stdout=PIPE, stderr=log)
    finally:
        os.close(log)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            listening = json.loads(await process.stdout.readline())
            assert json.loads(await process.stdout.readline()) == {"event": "ready"}
        async with httpx.AsyncClient(base_url=f"http://{listening['http']}", timeout=BOUND) as client:
            yield client
        process.terminate()
        async with asyncio.timeout(BOUND):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _beating(worker: ScriptedWorker) -> AsyncIterator[None]:
    """The worker reports as real ones do, however long the commands beside it take."""

    async def beat() -> None:
        while True:
            if worker.conversations:
                worker.now.load()
            await asyncio.sleep(0.25)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def _status(client: httpx.AsyncClient, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return (await client.post("/v1/completions", json=ASK, headers=headers)).status_code


async def _becomes(client: httpx.AsyncClient, key: str, wanted: int) -> int:
    """How many requests were answered 200 until one was answered `wanted`."""
    served, end = 0, time.monotonic() + BOUND
    while (status := await _status(client, key)) != wanted:
        assert status in (200, 401)
        assert time.monotonic() < end
        served += status == 200
        await asyncio.sleep(0.05)
    return served + (wanted == 200)


async def test_a_key_made_beside_a_running_router_works_until_it_is_revoked_and_its_usage_is_shown(
    tmp_path: Path,
) -> None:
    store, document = tmp_path / "tenants.db", tmp_path / "tenants.yaml"
    document.write_text("tenants: [{name: acme}]")
    async with (
        ScriptedWorker(script=echo) as worker,
        _beating(worker),
        _router(store, worker.target) as client,
    ):
        assert (await client.post("/v1/completions", json=ASK)).status_code == 200, "nobody needs a key yet"
        await _octavo(store, "tenant", "apply", "-f", str(document))
        await _becomes(client, "none", 401)  # from here on nothing is the open tenant's
        key = (await _octavo(store, "key", "create", "acme", "main")).strip()
        served = await _becomes(client, key, 200)
        await _octavo(store, "key", "revoke", "acme", "main")
        served += await _becomes(client, key, 401)
        (total,) = json.loads(await _octavo(store, "usage", "--tenant", "acme", "--format", "json"))
    log = await asyncio.to_thread(_log(store).read_text)
    assert log
    assert (total["key"], total["model"]) == ("main", "tiny")
    assert (total["requests"], total["prompt_tokens"], total["output_tokens"]) == (served, 3 * served, 3 * served)
    assert key.rsplit("-", 1)[1] not in log
