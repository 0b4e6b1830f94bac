"""What befalls the database's file while routers have it open, and files that are none of ours."""

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.tenancy.keyring import Keyring
from router.tenancy.records import KeyRecord
from router.tenancy.sqlite import thread
from router.tenancy.sqlite.schema import VERSION, Link, WrongVersion, connect, make
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import AuditQuery, Granted, UsageQuery
from shared.errors import InvalidRequest, Unauthenticated, Unavailable
from tests.fakes.tenancy import add, settlement, tenant, wanted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "octavo.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    await store.aclose()


def _move(path: Path, to: Path) -> None:
    path.rename(to)


def _break(path: Path) -> None:
    """All but its first page."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"U" * (path.stat().st_size - 4096))


async def test_a_store_that_was_deleted_is_unavailable_and_no_empty_one_takes_its_place(
    store: SqliteStore, path: Path
) -> None:
    await add(store, "acme")
    _move(path, path.with_suffix(".away"))
    for _ in range(2):
        with pytest.raises(Unavailable):
            await store.reserve(wanted("a"))
        with pytest.raises(Unavailable):
            await store.snapshot()
    with pytest.raises(sqlite3.OperationalError):
        SqliteStore(path, make=False)
    _move(path.with_suffix(".away"), path)
    assert isinstance(await store.reserve(wanted("a")), Granted)
    assert await store.settle(settlement("a"))
    assert [line.charge.id for line in await store.usage(UsageQuery())] == ["a"]


async def test_another_store_in_its_place_is_not_taken_for_it(store: SqliteStore, path: Path) -> None:
    key = await add(store, "acme")
    keyring = Keyring(store)
    await keyring.refresh()
    _move(path, path.with_suffix(".away"))
    make(path)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await keyring.refresh()
        with pytest.raises(Unavailable):
            await store.put_tenants([tenant("beta")], actor="root")
    assert keyring.authenticate(key).tenant.id == "acme"
    with pytest.raises(Unauthenticated):
        keyring.authenticate(None)


async def test_a_broken_database_is_unavailable_time_and_again(path: Path) -> None:
    store = SqliteStore(path)
    await add(store, "acme")
    await store.aclose()
    store = SqliteStore(path)
    _break(path)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await store.snapshot()
        with pytest.raises(Unavailable):
            await store.put_tenants([tenant("beta")], actor="root")
    await store.aclose()


async def test_a_connection_whose_transaction_cannot_be_ended_is_made_anew(path: Path) -> None:
    make(path)
    made: list[Link] = []

    def once_more() -> Link:
        made.append(connect(path))
        return made[-1]

    one = thread.StoreThread(once_more, begin="IMMEDIATE", name="test")

    def closes(db: sqlite3.Connection) -> None:
        db.close()

    with pytest.raises(Unavailable):
        await one.do(closes)
    assert await one.do(lambda db: db.execute("SELECT 1").fetchone()) == (1,)
    assert len(made) == 3, "the first look, the one that broke, and the next"
    await one.aclose()


async def test_a_thread_that_gets_no_connection_says_so_and_tries_again(path: Path) -> None:
    make(path)
    refusing = False

    def sometimes() -> Link:
        if refusing:
            raise sqlite3.OperationalError("database is locked")
        return connect(path)

    one = thread.StoreThread(sometimes, begin="IMMEDIATE", name="test")
    refusing = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            await one.do(lambda db: None)
    refusing = False
    await one.do(lambda db: None)
    await one.aclose()


@pytest.mark.parametrize("version", [0, 3, VERSION])
def test_another_programs_database_is_left_as_it_is(path: Path, version: int) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (address)")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(WrongVersion, match="another program's"):
        SqliteStore(path)
    assert path.read_bytes() == before


async def test_an_empty_file_becomes_a_store_and_odd_names_are_names(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a?mode=memory#%20\xff.db")
    path.touch()
    store = SqliteStore(path)
    await store.put_tenants([tenant("acme")], actor="root")
    await store.aclose()
    shutil.copy(path, tmp_path / "copy.db")
    again = SqliteStore(tmp_path / "copy.db")
    assert [found.name for found in (await again.snapshot()).tenants] == ["acme"]
    await again.aclose()


async def test_text_that_utf8_cannot_write_is_the_callers_fault(store: SqliteStore) -> None:
    await add(store, "acme")
    for call in (
        store.delete_tenant("\udcff", actor="root"),
        store.revoke_key("acme", "\udcff", actor="root"),
        store.add_key(KeyRecord(tenant="\ud800", name="x", prefix="x", salt=b"", digest=b""), actor="root"),
        store.usage(UsageQuery(tenant="\udcff")),
        store.totals(UsageQuery(model="\udcff")),
        store.audit_lines(AuditQuery(actor="\udcff")),
    ):
        with pytest.raises(InvalidRequest):
            await call
