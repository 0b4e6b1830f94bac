"""Public prefixes in the store, and a store of the version that had none."""

import sqlite3
from pathlib import Path

import pytest

from router.tenancy.records import PrefixRecord
from router.tenancy.sqlite import directory
from router.tenancy.sqlite.schema import VERSION, connect
from router.tenancy.sqlite.store import SqliteStore
from shared.errors import InvalidRequest, NotFound
from tests.fakes.tenancy import tenant


async def test_a_prefix_comes_back_as_it_was_written_and_goes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "octavo.db")
    given = PrefixRecord(name="clerk", system="You are a clerk.", models=("tiny", "big-*"), created=5.0)
    before = await store.revision()
    await store.put_prefix(given, actor="root")
    assert (await store.snapshot()).prefixes == (given,)
    assert await store.revision() == before + 1
    await store.delete_prefix("clerk", actor="root")
    assert (await store.snapshot()).prefixes == ()
    with pytest.raises(NotFound):
        await store.delete_prefix("clerk", actor="root")
    log = [(line.action, line.subject, line.detail) for line in await store.audit()]
    assert log == [
        ("prefix.put", "clerk", "16 characters of system, models tiny,big-*"),
        ("prefix.delete", "clerk", ""),
    ]
    await store.aclose()


async def test_there_are_no_more_prefixes_than_prompts_are_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MOST_PREFIXES", 2)
    store = SqliteStore(tmp_path / "octavo.db")
    for name in "ab":
        await store.put_prefix(PrefixRecord(name=name, text="x"), actor="root")
    with pytest.raises(InvalidRequest):
        await store.put_prefix(PrefixRecord(name="c", text="x"), actor="root")
    await store.put_prefix(PrefixRecord(name="b", text="y"), actor="root")
    assert [(prefix.name, prefix.text) for prefix in (await store.snapshot()).prefixes] == [("a", "x"), ("b", "y")]
    await store.aclose()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": "A", "text": "x"}, "name"),
        ({"name": "a"}, "text"),
        ({"name": "a", "text": "x", "system": "y"}, "text"),
        ({"name": "a", "text": "x" * (1 << 18) + "x"}, "text"),
        ({"name": "a", "system": "x" * (1 << 18) + "x"}, "system"),
        ({"name": "a", "text": "x\udcff"}, "text"),
        ({"name": "a", "system": "\ud800x"}, "system"),
        ({"name": "a", "text": "x", "models": ()}, "models"),
        ({"name": "a", "text": "x", "models": ("",)}, "models"),
    ],
)
def test_what_is_no_prefix_is_refused_by_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PrefixRecord(**fields)  # type: ignore[arg-type]
    assert caught.value.param == param


async def test_a_store_of_the_version_before_gets_what_it_lacks_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "octavo.db"
    store = SqliteStore(path)
    await store.put_tenants([tenant("acme")], actor="root")
    before = await store.snapshot()
    await store.aclose()
    with sqlite3.connect(path) as old:
        old.execute("DROP TABLE prefixes")
        old.execute("ALTER TABLE adapters DROP COLUMN model")
        old.execute("ALTER TABLE audit DROP COLUMN origin")
        old.execute("ALTER TABLE audit DROP COLUMN before")
        old.execute("PRAGMA user_version = 1")
    old.close()
    again = SqliteStore(path)
    assert await again.snapshot() == before
    await again.put_prefix(PrefixRecord(name="a", text="x"), actor="root")
    await again.aclose()
    db = connect(path).db
    assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
    db.close()
