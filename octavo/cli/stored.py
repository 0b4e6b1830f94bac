"""The store of tenants, opened by commands that work on it: beside any number of routers, or with none running."""

import argparse
import asyncio
import os
import pwd
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shared.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from router.tenancy.store import Store

T = TypeVar("T")

STORE_ENV = "OCTAVO_ROUTER_STORE"


def add_store(parser: argparse.ArgumentParser) -> None:
    """Adds --store."""
    given = os.environ.get(STORE_ENV)
    parser.add_argument(
        "--store",
        type=Path,
        default=Path(given) if given else None,
        required=not given,
        help=f"the routers' database of tenants (${STORE_ENV})",
    )


def actor() -> str:
    """Who stands in the audit log: this process's user. No tenant's name has a colon."""
    try:
        return f"local:{pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"local:{os.geteuid()}"


def on_store(path: Path, task: Callable[["Store"], Awaitable[T]], *, make: bool = False) -> T:
    """What `task` gives. `make` is whether a store may be made where there is none.

    Raises OctavoError, or OSError where the file cannot be opened.
    """
    if not make and not path.exists():
        raise NotFound(f"{path}: there is no store; `octavo tenant apply` makes one, and a router with --store does")
    return asyncio.run(_on_store(path, task))


async def _on_store(path: Path, task: Callable[["Store"], Awaitable[T]]) -> T:
    from router.tenancy.sqlite.schema import WrongVersion
    from router.tenancy.sqlite.store import SqliteStore

    try:
        store = SqliteStore(path)
    except (sqlite3.Error, WrongVersion) as error:
        raise Unavailable(f"{path}: {error}") from error
    try:
        return await task(store)
    finally:
        await store.aclose()
