"""A router process whose store is none that it can use: it says so and ends, whether it is one process or several."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from router.tenancy.sqlite.store import SqliteStore
from tests.conftest import ROOT
from tests.fakes import tenancy

BOUND = 60.0  # seconds
FLAGS = ("--http-port", "0", "--grpc-port", "0", "--workers", "127.0.0.1:1")


def _no_database(path: Path) -> None:
    path.write_text("no database " * 100)


def _another_programs(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (address)")
    db.close()


async def _fill(path: Path) -> None:
    store = SqliteStore(path)
    await tenancy.add(store, "acme")
    await store.aclose()


def _broken(path: Path) -> None:
    """All but the first page."""
    asyncio.run(_fill(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"U" * (len(whole) - 4096))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("make", [_no_database, _another_programs, _broken])
def test_it_ends_with_a_line_and_leaves_the_file_as_it_is(
    make: Callable[[Path], None], processes: int, tmp_path: Path
) -> None:
    path = tmp_path / "octavo.db"
    make(path)
    before = path.read_bytes()
    env = {**os.environ, "OCTAVO_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "router.main", *FLAGS, "--store", str(path), "--processes", str(processes))
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("octavo-router: ")
    assert "Traceback" not in ended.stderr
    assert path.read_bytes() == before
