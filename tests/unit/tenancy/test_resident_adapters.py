"""The limit of resident adapters, in the store: by whatever process, and however an adapter came."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.tenancy.records import AdapterRecord
from router.tenancy.sqlite.books import LEASE_SECONDS
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import Granted, Refused
from shared.errors import RateLimited
from tests.fakes.clock import FakeClock
from tests.fakes.tenancy import NOW, settlement, tenant, wanted


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "octavo.db", clock=clock)
    await store.put_tenants([tenant("acme", resident_adapters=2), tenant("other")], actor="root")
    yield store
    await store.aclose()


async def ask(store: SqliteStore, charge_id: str, adapter: str) -> Granted | Refused:
    return await store.reserve(wanted(charge_id, adapter=adapter, resident_adapters=2))


def own(name: str, *, digest: bytes = b"") -> AdapterRecord:
    return AdapterRecord(tenant="acme", name=name, source=f"/adapters/{name}", digest=digest)


async def test_one_adapter_more_than_the_limit_is_refused_while_the_others_are_in_use(store: SqliteStore) -> None:
    for charge_id, adapter in (("1", "acme/one"), ("2", "shared"), ("3", "acme/one"), ("4", "")):
        assert isinstance(await ask(store, charge_id, adapter), Granted)
    refused = await ask(store, "5", "acme/two")
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.retry_after) == ("resident_adapters", 1.0)
    await store.settle(settlement("1"))
    assert isinstance(await ask(store, "6", "acme/two"), Refused)  # another request still runs on one
    await store.settle(settlement("3"))
    assert isinstance(await ask(store, "7", "acme/two"), Granted)


async def test_loaded_adapters_count_until_they_are_unloaded(store: SqliteStore) -> None:
    await store.put_adapter(own("one"), actor="acme/main")
    await store.put_adapter(own("two"), actor="acme/main")
    with pytest.raises(RateLimited, match="the limit of 2 resident adapters"):
        await store.put_adapter(own("three"), actor="acme/main")
    await store.put_adapter(own("two", digest=b"new"), actor="acme/main")
    assert isinstance(await ask(store, "1", "acme/one"), Granted)
    assert isinstance(await ask(store, "2", "acme/found"), Refused)
    await store.delete_adapter("acme", "two", actor="acme/main")
    assert isinstance(await ask(store, "3", "acme/found"), Granted)
    with pytest.raises(RateLimited):
        await store.put_adapter(own("three"), actor="acme/main")
    assert [record.name for record in (await store.snapshot()).adapters] == ["one"]


async def test_other_tenants_and_shared_adapters_of_the_operator_are_not_counted(store: SqliteStore) -> None:
    for number in range(4):
        await store.put_adapter(AdapterRecord(name=f"all{number}", source="/a"), actor="root")
        await store.reserve(wanted(f"o{number}", of="other", adapter=f"all{number}"))
    for charge_id, adapter in (("1", "acme/one"), ("2", "acme/two")):
        assert isinstance(await ask(store, charge_id, adapter), Granted)


async def test_what_a_lost_router_held_is_free_when_its_lease_has_ended(store: SqliteStore, clock: FakeClock) -> None:
    for charge_id, adapter in (("1", "acme/one"), ("2", "acme/two")):
        await ask(store, charge_id, adapter)
    assert isinstance(await ask(store, "3", "acme/three"), Refused)
    clock.advance(LEASE_SECONDS + 0.1)
    assert isinstance(await ask(store, "3", "acme/three"), Granted)
