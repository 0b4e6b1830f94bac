"""Credentials to callers: keys, expiry, scopes, salts, and how soon changes are known."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.request import GenerateRequest, TextPrompt
from router.tenancy import keys, salts
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.keyring import Keyring
from router.tenancy.records import Scope, TenantRecord
from router.tenancy.sqlite.store import SqliteStore
from shared.errors import InvalidRequest, OctavoError, PermissionDenied, Unauthenticated
from shared.redact import redact
from shared.types import Tenant
from tests.fakes.clock import FakeClock
from tests.fakes.tenancy import INFER, NOW, add, tenant


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "octavo.db")
    yield store
    await store.aclose()


async def ring_of(store: SqliteStore, clock: FakeClock) -> Keyring:
    keyring = Keyring(store, clock=clock, poll=0.01)
    await keyring.refresh()
    return keyring


def refusal(keyring: Keyring, credentials: str | None) -> OctavoError:
    with pytest.raises(Unauthenticated) as caught:
        keyring.authenticate(credentials)
    return caught.value


async def test_a_key_names_its_tenant_and_what_it_may(store: SqliteStore, clock: FakeClock) -> None:
    key = await add(store, "acme", weight=2.0, top_class=3, requests_per_minute=9, models=("tiny",))
    caller = (await ring_of(store, clock)).authenticate(key)
    assert (caller.tenant.id, caller.tenant.weight, caller.tenant.top_class) == ("acme", 2.0, 3)
    assert (caller.key, caller.scopes, caller.limits.requests_per_minute) == ("main", INFER, 9)
    assert caller.sees_model("tiny")
    assert not caller.sees_model("large")
    with pytest.raises(PermissionDenied):
        caller.require(Scope.ADMIN)


async def test_without_any_tenant_everyone_is_the_open_one(store: SqliteStore, clock: FakeClock) -> None:
    keyring = await ring_of(store, clock)
    assert keyring.authenticate(None) is keyring.authenticate("whatever") is OPEN_CALLER
    await add(store, "acme")
    await store.delete_tenant("acme", actor="root")
    await keyring.refresh()
    refusal(keyring, None)


async def test_every_key_that_is_none_is_refused_in_the_same_words(store: SqliteStore, clock: FakeClock) -> None:
    expired = await add(store, "late", expires=NOW - 1)
    revoked = await add(store, "gone")
    await store.revoke_key("gone", "main", actor="root")
    orphan = await add(store, "left")
    await store.delete_tenant("left", actor="root")
    good = await add(store, "acme")
    keyring = await ring_of(store, clock)
    _, prefix, secret = good.split("-")
    wrong = [
        expired, revoked, orphan, good[:-1], good + "x", good.upper(), f" {good}", f"octk-{prefix}-{'0' * 43}",
        f"octk-{'0' * 12}-{secret}", secret, prefix, "octk-", "x", "\x00", "é" * 60, "sk-" + "a" * 48, good * 100,
    ]  # fmt: skip
    told = {(type(error), error.message, error.code) for error in (refusal(keyring, key) for key in wrong)}
    assert len(told) == 1
    assert keyring.authenticate(good).tenant.id == "acme"


async def test_a_key_ends_when_it_expires(store: SqliteStore, clock: FakeClock) -> None:
    key = await add(store, "acme", expires=NOW + 60)
    keyring = await ring_of(store, clock)
    assert keyring.authenticate(key).key == "main"
    clock.advance(60)
    refusal(keyring, key)


async def test_changes_of_another_process_are_seen_by_themselves(
    store: SqliteStore, clock: FakeClock, tmp_path: Path
) -> None:
    key = await add(store, "acme")
    keyring = Keyring(store, clock=clock, poll=0.01)
    await keyring.start()
    other = SqliteStore(tmp_path / "octavo.db")
    try:
        seen: asyncio.Event = asyncio.Event()
        keyring.changed.append(lambda _: seen.set())
        assert keyring.authenticate(key).tenant.weight == 1.0
        await other.put_tenants([tenant("acme", weight=5.0)], actor="root")
        async with asyncio.timeout(20):
            await seen.wait()
        assert keyring.authenticate(key).tenant.weight == 5.0
        seen.clear()
        await other.revoke_key("acme", "main", actor="root")
        async with asyncio.timeout(20):
            await seen.wait()
        refusal(keyring, key)
    finally:
        await keyring.aclose()
        await other.aclose()


def _salt(record: TenantRecord, secret: bytes = b"s") -> bytes:
    return salts.of_tenant(secret, record)


def test_salts_differ_by_tenant_unless_a_group_shares() -> None:
    a, b = tenant("a", uid="1"), tenant("b", uid="2")
    assert len({_salt(a), _salt(b), _salt(tenant("a", uid="3")), _salt(a, b"other")}) == 4
    shared = [_salt(tenant(name, uid=name, cache_scope="team")) for name in ("a", "b")]
    assert shared[0] == shared[1] != _salt(tenant("a", uid="1", cache_scope="team2"))
    assert _salt(tenant("a", uid="team")) != _salt(tenant("b", uid="x", cache_scope="team"))


def _asked(caller: Caller, **fields: object) -> Tenant:
    return GenerateRequest(model="tiny", prompt=TextPrompt(text="x"), caller=caller, **fields).tenant  # type: ignore[arg-type]


def test_a_clients_salt_is_nested_under_its_tenants() -> None:
    a = Caller(tenant=Tenant(id="a", salt=b"A" * 16))
    b = Caller(tenant=Tenant(id="b", salt=b"B" * 16))
    plain, one, two = (_asked(a, cache_salt=salt).salt for salt in ("", "one", "two"))
    assert len({plain, one, two, _asked(b, cache_salt="one").salt, _asked(b).salt}) == 5
    assert plain == b"A" * 16
    assert _asked(a, cache_salt="one").salt == one
    assert _asked(b, cache_salt=plain.hex()).salt != plain


@pytest.mark.parametrize(
    ("top", "asked", "got"), [(2, None, 2), (2, 0, 2), (2, -5, 2), (2, 4, 4), (0, 0, 0), (0, 99, 7)]
)
def test_a_class_is_never_above_the_tenants(top: int, asked: int | None, got: int) -> None:
    assert _asked(Caller(tenant=Tenant(id="a", top_class=top)), priority=asked).top_class == got


def test_a_key_is_shown_once_and_nowhere_else() -> None:
    key = keys.new_key(tenant="acme", name="main", scopes=INFER, now=NOW)
    assert key.text not in repr(key)
    assert keys.parts(key.text) is not None
    assert key.text.split("-")[2] not in redact(f"the key {key.text} and {key.text[:30]} of it")


@pytest.mark.parametrize("expires", [1e300, float("inf"), float("nan"), 253_402_300_800.0, 10**400, -1.0, True])
def test_a_key_expires_at_a_time_that_a_calendar_has_or_never(expires: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        keys.new_key(tenant="acme", name="x", scopes=INFER, now=NOW, expires=expires)
    assert caught.value.param == "expires"


@pytest.mark.parametrize(
    ("pattern", "shown", "hidden"),
    [("tiny[1]", "tiny[1]", "tiny1"), ("[!a]*", "[!a]x", "beta"), ("[a-z]?", "[a-z]b", "ab"), ("a[*", "a[b", "ab")],
)
def test_a_bracket_in_a_pattern_is_a_bracket(pattern: str, shown: str, hidden: str) -> None:
    caller = Caller(tenant=Tenant(id="acme"), models=(pattern,))
    assert caller.sees_model(shown)
    assert not caller.sees_model(hidden)


def test_another_tenants_adapters_are_not_seen() -> None:
    caller = Caller(tenant=Tenant(id="acme"), adapters=("poet*",))
    assert [caller.sees_adapter(name) for name in ("poet", "other", "acme/mine", "beta/poet")] == [
        True,
        False,
        True,
        False,
    ]
