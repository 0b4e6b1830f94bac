"""A router process that listens on every address: refused while nobody needs a key."""

import asyncio
import json
import os
import sys
from pathlib import Path

import httpx
import pytest

from octavo.cli.main import main as octavo
from tests.conftest import ROOT

BOUND = 30.0  # seconds
EVERYWHERE = ("--host", "0.0.0.0", "--http-port", "0", "--grpc-port", "0", "--workers", "127.0.0.1:1")


async def _started(tmp: Path, *flags: str, **environ: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    own = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_ROUTER_")}
    env = {**own, "OCTAVO_CACHE": str(tmp), "PYTHONPATH": str(ROOT), **environ}
    command = (sys.executable, "-m", "router.main", *EVERYWHERE, *flags)
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe)


async def _refused(process: asyncio.subprocess.Process) -> str:
    """What it said when it ended with status 2."""
    try:
        async with asyncio.timeout(BOUND):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, out) == (2, b"")
    return err.decode()


async def _status_without_a_key(process: asyncio.subprocess.Process) -> int:
    """Of a look at the models, once it listens. The process is ended."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            said = json.loads(await process.stdout.readline())
            port = said["http"].rpartition(":")[2]
            async with httpx.AsyncClient() as client:
                return (await client.get(f"http://127.0.0.1:{port}/v1/models")).status_code
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("stored", [False, True], ids=["no store", "an empty store"])
async def test_without_a_tenant_it_does_not_listen_and_says_what_to_do(stored: bool, tmp_path: Path) -> None:
    flags = ("--store", str(tmp_path / "tenants.db")) if stored else ()
    (line,) = (await _refused(await _started(tmp_path, *flags))).splitlines()
    assert line.startswith("octavo-router: nobody needs a key yet, so listening on 0.0.0.0")
    assert "--allow-open" in line


async def test_it_listens_where_a_flag_or_the_environment_says_so(tmp_path: Path) -> None:
    assert await _status_without_a_key(await _started(tmp_path, "--allow-open")) == 200
    assert await _status_without_a_key(await _started(tmp_path, OCTAVO_ROUTER_ALLOW_OPEN="true")) == 200
    await _refused(await _started(tmp_path, "--no-allow-open", OCTAVO_ROUTER_ALLOW_OPEN="true"))


async def test_with_a_tenant_it_listens_and_asks_for_a_key(tmp_path: Path) -> None:
    store, document = tmp_path / "tenants.db", tmp_path / "tenants.yaml"
    document.write_text("tenants: [{name: acme}]")
    apply = ("tenant", "apply", "-f", str(document), "--store", str(store))
    assert await asyncio.to_thread(octavo, apply) == 0
    assert await _status_without_a_key(await _started(tmp_path, "--store", str(store))) == 401
