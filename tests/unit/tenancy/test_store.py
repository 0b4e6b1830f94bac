"""The embedded store: what a step promises, on a clock that the test moves."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.tenancy.keys import new_key
from router.tenancy.records import AdapterRecord, AuditRecord, Limits, Scope, TenantRecord
from router.tenancy.sqlite.schema import WrongVersion, connect, make
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import Granted, Refused, Renewal, UsageQuery
from shared.errors import AlreadyExists, NotFound, Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.tenancy import INFER, NOW, add, settlement, tenant, wanted


@asynccontextmanager
async def opened(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path / "octavo.db", clock=clock)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path, clock) as store:
        yield store


async def test_a_tenant_comes_back_as_it_was_written(store: SqliteStore) -> None:
    given = tenant(
        "acme",
        weight=2.5,
        top_class=3,
        requests_per_minute=60,
        max_n=4,
        models=("llama-*",),
        adapters=(),
        cache_scope="team",
        labels={"plan": "gold"},
    )
    await store.put_tenants([given], actor="root")
    (found,) = (await store.snapshot()).tenants
    assert found == TenantRecord(**{**{f: getattr(given, f) for f in given.__dataclass_fields__}, "uid": found.uid})
    assert len(found.uid) == 16


async def test_the_database_is_its_owners_alone(store: SqliteStore, tmp_path: Path) -> None:
    assert (tmp_path / "octavo.db").stat().st_mode & 0o077 == 0


async def test_a_new_tenant_of_an_old_name_is_another(store: SqliteStore) -> None:
    await store.put_tenants([tenant("acme")], actor="root")
    (first,) = (await store.snapshot()).tenants
    await store.put_tenants([tenant("acme", weight=2)], actor="root")
    (changed,) = (await store.snapshot()).tenants
    await store.delete_tenant("acme", actor="root")
    await store.put_tenants([tenant("acme")], actor="root")
    (second,) = (await store.snapshot()).tenants
    assert first.uid == changed.uid != second.uid


async def test_tenancy_once_begun_never_ends(store: SqliteStore) -> None:
    assert not (await store.snapshot()).tenancy
    await store.put_tenants([tenant("acme")], actor="root")
    await store.delete_tenant("acme", actor="root")
    assert (await store.snapshot()).tenancy


async def test_each_change_moves_the_revision_and_an_equal_one_does_not(store: SqliteStore) -> None:
    seen = [await store.revision()]
    await store.put_tenants([tenant("acme")], actor="root")
    seen.append(await store.revision())
    key = new_key(tenant="acme", name="main", scopes=INFER, now=NOW)
    await store.add_key(key.record, actor="root")
    seen.append(await store.revision())
    await store.put_adapter(AdapterRecord(name="poet", source="/adapters/poet", tenant="acme"), actor="acme/main")
    seen.append(await store.revision())
    await store.revoke_key("acme", "main", actor="root")
    seen.append(await store.revision())
    assert seen == sorted(set(seen))
    await store.put_tenants([tenant("acme")], actor="root")
    assert await store.revision() == seen[-1]


async def test_the_audit_log_tells_who_did_what(store: SqliteStore, clock: FakeClock) -> None:
    key = await add(store, "acme")
    clock.advance(5)
    await store.note(AuditRecord(time=clock(), actor="root", action="worker.drain", subject="w1"))
    await store.delete_tenant("acme", actor="local:root")
    log = await store.audit()
    assert [(entry.actor, entry.action, entry.subject) for entry in log] == [
        ("test", "tenant.put", "acme"),
        ("test", "key.add", "acme/main"),
        ("root", "worker.drain", "w1"),
        ("local:root", "tenant.delete", "acme"),
    ]
    assert [entry.action for entry in await store.audit(since=NOW + 5)] == ["worker.drain", "tenant.delete"]
    assert key.split("-")[2] not in str(log)


async def test_the_audit_log_tells_what_an_adapter_was_and_what_it_became(store: SqliteStore) -> None:
    found = AdapterRecord(name="poet", source="poet")
    loaded = AdapterRecord(name="poet", source="/a", digest=b"d" * 32, pinned=True)
    for record in (found, loaded):
        await store.put_adapter(record, actor="root")
    await store.delete_adapter("", "poet", actor="root")
    followed, version = "source poet, whichever version is there, not pinned", f"source /a, digest {'64' * 32}, pinned"
    assert [(entry.action, entry.before, entry.detail) for entry in await store.audit()] == [
        ("adapter.put", "", followed),
        ("adapter.put", followed, version),
        ("adapter.delete", version, ""),
    ]


async def test_the_database_holds_no_key(store: SqliteStore, tmp_path: Path) -> None:
    key = await add(store, "acme")
    await store.aclose()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240 - nothing else runs
    assert key.split("-")[2].encode() not in content


async def test_what_is_not_there_is_named(store: SqliteStore) -> None:
    with pytest.raises(NotFound):
        await store.delete_tenant("acme", actor="root")
    key = new_key(tenant="acme", name="main", scopes=INFER, now=NOW)
    with pytest.raises(NotFound):
        await store.add_key(key.record, actor="root")
    await store.put_tenants([tenant("acme")], actor="root")
    await store.add_key(key.record, actor="root")
    with pytest.raises(AlreadyExists):
        await store.add_key(new_key(tenant="acme", name="main", scopes=INFER, now=NOW).record, actor="root")
    with pytest.raises(NotFound):
        await store.revoke_key("acme", "other", actor="root")
    with pytest.raises(NotFound):
        await store.delete_adapter("acme", "poet", actor="root")
    with pytest.raises(NotFound):
        await store.put_adapter(AdapterRecord(name="poet", source="x", tenant="nobody"), actor="root")


async def test_several_tenants_are_put_all_or_none(store: SqliteStore, tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "octavo.db")
    db.execute("CREATE TRIGGER no BEFORE INSERT ON tenants WHEN NEW.name = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END")
    db.commit()
    db.close()
    with pytest.raises(sqlite3.IntegrityError):
        await store.put_tenants([tenant("good"), tenant("bad")], actor="root")
    assert (await store.snapshot()).tenants == ()
    assert await store.audit() == []


async def test_an_adapter_is_kept_as_it_was_put(store: SqliteStore) -> None:
    await add(store, "acme")
    own = AdapterRecord(
        name="poet", source="/a", tenant="acme", digest=b"d" * 32, pinned=True, created=NOW, model="tiny"
    )
    shared = AdapterRecord(name="poet", source="poet")
    for record in (own, shared):
        await store.put_adapter(record, actor="root")
    assert (await store.snapshot()).adapters == (shared, own)


async def test_a_deleted_tenant_takes_keys_and_adapters_along(store: SqliteStore) -> None:
    await add(store, "acme")
    await add(store, "other")
    await store.put_adapter(AdapterRecord(name="poet", source="x", tenant="acme"), actor="root")
    await store.delete_tenant("acme", actor="root")
    left = await store.snapshot()
    assert [key.tenant for key in left.keys] == ["other"]
    assert left.adapters == ()


async def test_a_minute_has_its_limit_and_no_more(store: SqliteStore, clock: FakeClock) -> None:
    for number in range(3):
        assert isinstance(await store.reserve(wanted(f"r{number}", requests_per_minute=3)), Granted)
        clock.advance(10)
    refused = await store.reserve(wanted("r3", requests_per_minute=3))
    assert isinstance(refused, Refused)
    assert refused.limit == "requests_per_minute"
    assert 30 <= refused.retry_after <= 30.25


async def test_retry_after_is_exact(store: SqliteStore, clock: FakeClock) -> None:
    await store.reserve(wanted("a", prompt=700, prompt_tokens_per_minute=1000))
    clock.advance(20)
    await store.reserve(wanted("b", prompt=200, prompt_tokens_per_minute=1000))
    refused = await store.reserve(wanted("c", prompt=500, prompt_tokens_per_minute=1000))
    assert isinstance(refused, Refused)
    clock.advance(refused.retry_after - 0.26)
    assert isinstance(await store.reserve(wanted("c", prompt=500, prompt_tokens_per_minute=1000)), Refused)
    clock.advance(0.26)
    assert isinstance(await store.reserve(wanted("c", prompt=500, prompt_tokens_per_minute=1000)), Granted)


async def test_rates_tell_what_is_left_and_when_all_is_back(store: SqliteStore, clock: FakeClock) -> None:
    limits: dict[str, Any] = {
        "requests_per_minute": 10,
        "prompt_tokens_per_minute": 100,
        "output_tokens_per_minute": 50,
    }
    granted = await store.reserve(wanted("a", prompt=30, output=20, **limits))
    requests, prompt, output = granted.rates.requests, granted.rates.prompt_tokens, granted.rates.output_tokens
    told = [(rate.limit, rate.remaining) for rate in (requests, prompt, output) if rate is not None]
    assert told == [(10, 9), (100, 70), (50, 30)]
    assert all(60 <= rate.reset <= 60.25 for rate in (requests, prompt, output) if rate is not None)
    headers = granted.rates.headers()
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-remaining-tokens"] == "30"  # output is nearer to its limit
    assert headers["x-ratelimit-reset-requests"].startswith("1m0")


async def test_output_is_held_until_it_is_made_and_comes_back_a_minute_after(
    store: SqliteStore, clock: FakeClock
) -> None:
    limits: dict[str, Any] = {"output_tokens_per_minute": 100}
    await store.reserve(wanted("a", output=100, **limits))
    for made in (20, 40):
        clock.advance(5)
        await store.renew([Renewal(charge_id="a", output_tokens=made)])
    assert isinstance(await store.reserve(wanted("b", output=1, **limits)), Refused)
    clock.advance(1)
    assert await store.settle(settlement("a", output=50))
    granted = await store.reserve(wanted("b", output=50, **limits))
    assert isinstance(granted, Granted)
    assert granted.rates.output_tokens is not None
    assert granted.rates.output_tokens.remaining == 0
    assert await store.abandon("b")
    clock.advance(54.25)  # the first twenty are a minute old
    assert isinstance(await store.reserve(wanted("c", output=70, **limits)), Granted)
    assert isinstance(await store.reserve(wanted("d", output=1, **limits)), Refused)


async def test_a_request_beyond_a_whole_minute_takes_all_of_it(store: SqliteStore, clock: FakeClock) -> None:
    limits: dict[str, Any] = {"output_tokens_per_minute": 100}
    assert isinstance(await store.reserve(wanted("a", output=5_000, **limits)), Granted)
    assert isinstance(await store.reserve(wanted("b", output=5_000, **limits)), Refused)
    await store.settle(settlement("a", output=10))
    assert isinstance(await store.reserve(wanted("b", output=5_000, **limits)), Refused)
    clock.advance(60.25)
    assert isinstance(await store.reserve(wanted("b", output=5_000, **limits)), Granted)


async def test_concurrency_counts_the_living(store: SqliteStore, clock: FakeClock) -> None:
    limits: dict[str, Any] = {"concurrent_requests": 2}
    await store.reserve(wanted("a", **limits))
    await store.reserve(wanted("b", **limits))
    refused = await store.reserve(wanted("c", **limits))
    assert isinstance(refused, Refused)
    assert refused.limit == "concurrent_requests"
    await store.settle(settlement("a"))
    assert isinstance(await store.reserve(wanted("c", **limits)), Granted)
    clock.advance(9)
    await store.renew([Renewal(charge_id="c", output_tokens=1)])
    clock.advance(2)  # b was never renewed
    assert isinstance(await store.reserve(wanted("d", **limits)), Granted)
    assert isinstance(await store.reserve(wanted("e", **limits)), Refused)


async def test_tenants_do_not_count_against_each_other(store: SqliteStore) -> None:
    limits: dict[str, Any] = {"requests_per_minute": 1, "concurrent_requests": 1}
    assert isinstance(await store.reserve(wanted("a", **limits)), Granted)
    assert isinstance(await store.reserve(wanted("b", of="other", **limits)), Granted)


async def test_one_charge_id_is_reserved_and_settled_once(store: SqliteStore) -> None:
    for _ in range(3):
        assert isinstance(await store.reserve(wanted("a", requests_per_minute=1)), Granted)
    assert [await store.settle(settlement("a", output=n)) for n in (7, 8)] == [True, False]
    assert not await store.abandon("a")
    (line,) = await store.usage(UsageQuery())
    assert line.charge.output_tokens == 7


async def test_what_is_abandoned_counts_for_nothing(store: SqliteStore) -> None:
    limits: dict[str, Any] = {"requests_per_minute": 1, "prompt_tokens_per_minute": 10, "output_tokens_per_minute": 10}
    await store.reserve(wanted("a", prompt=10, output=10, **limits))
    assert await store.abandon("a")
    assert not await store.settle(settlement("a"))
    assert isinstance(await store.reserve(wanted("b", prompt=10, output=10, **limits)), Granted)
    assert await store.usage(UsageQuery()) == []


async def test_any_router_settles_what_another_lost(tmp_path: Path, store: SqliteStore, clock: FakeClock) -> None:
    await store.reserve(wanted("a", prompt=5, output=100))
    await store.renew([Renewal(charge_id="a", output_tokens=12, cached_tokens=4)])
    async with opened(tmp_path, clock) as other:
        clock.advance(9.9)
        assert await other.sweep() == 0
        clock.advance(0.1)
        assert await other.sweep() == 1
        assert await store.sweep() == 0
    assert not await store.settle(settlement("a", output=30))
    (line,) = await store.usage(UsageQuery())
    charge = line.charge
    told = (charge.finish, charge.prompt_tokens, charge.cached_tokens, charge.output_tokens, charge.worker)
    assert told == ("lost", 5, 4, 12, "")


async def test_the_ledger_cannot_be_changed(store: SqliteStore, tmp_path: Path) -> None:
    await store.reserve(wanted("a"))
    await store.settle(settlement("a"))
    db = sqlite3.connect(tmp_path / "octavo.db")
    for statement in ("DELETE FROM ledger", "UPDATE ledger SET output_tokens = 0"):
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)
    db.close()


async def test_usage_is_told_by_tenant_key_model_and_time_and_in_pages(store: SqliteStore, clock: FakeClock) -> None:
    for number in range(6):
        owner = "acme" if number % 2 else "other"
        await store.reserve(wanted(f"r{number}", of=owner))
        await store.settle(settlement(f"r{number}", prompt=10, cached=4, output=number))
        clock.advance(1)
    lines = await store.usage(UsageQuery(tenant="acme"))
    assert [line.charge.id for line in lines] == ["r1", "r3", "r5"]
    assert [line.charge.id for line in await store.usage(UsageQuery(since=NOW + 2, until=NOW + 4))] == ["r2", "r3"]
    first = await store.usage(UsageQuery(limit=4))
    rest = await store.usage(UsageQuery(limit=4, after=first[-1].number))
    assert [line.charge.id for line in [*first, *rest]] == [f"r{n}" for n in range(6)]
    acme, other = await store.totals(UsageQuery())
    assert (acme.tenant, acme.requests, acme.prompt_tokens, acme.cached_tokens, acme.output_tokens) == (
        "acme",
        3,
        30,
        12,
        9,
    )
    assert (other.tenant, other.output_tokens) == ("other", 6)


async def test_a_step_that_fails_undoes_itself_alone(store: SqliteStore) -> None:
    def breaks(db: sqlite3.Connection) -> None:
        db.execute("UPDATE meta SET value = 99 WHERE name = 'revision'")
        raise ValueError("broken")

    before = await store.revision()
    outcomes = await asyncio.gather(
        store.put_tenants([tenant("acme")], actor="root"),
        store._writer.do(breaks),
        store.put_tenants([tenant("other")], actor="root"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, type(None)]
    assert await store.revision() == before + 2


async def test_a_closed_store_says_so(tmp_path: Path, clock: FakeClock) -> None:
    store = SqliteStore(tmp_path / "octavo.db", clock=clock)
    await store.aclose()
    with pytest.raises(Unavailable):
        await store.revision()


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "octavo.db")
    db = connect(tmp_path / "octavo.db").db
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(WrongVersion):
        SqliteStore(tmp_path / "octavo.db")


async def test_clocks_that_go_back_hold_nobody_up_for_long(store: SqliteStore, clock: FakeClock) -> None:
    clock.advance(3600)
    await store.reserve(wanted("a", requests_per_minute=1))
    clock.advance(-3600)
    assert isinstance(await store.reserve(wanted("b", requests_per_minute=1)), Granted)


def test_scopes_are_told_by_their_names() -> None:
    assert [scope.value for scope in Scope] == ["infer", "adapters", "admin"]
    assert Limits().requests_per_minute is None


def test_what_is_no_store_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(sqlite3.DatabaseError):
        SqliteStore(tmp_path / "text")
    with pytest.raises(OSError, match="No such file"):
        SqliteStore(tmp_path / "nowhere" / "octavo.db")
