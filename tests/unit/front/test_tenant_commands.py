"""`octavo tenant`, `octavo key` and `octavo usage` on a store, as an operator runs them."""

import asyncio
import csv
import io
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo.cli import usage
from octavo.cli.key import SCOPES
from octavo.cli.moments import future, past
from octavo.cli.stored import STORE_ENV, actor
from router.tenancy.keyring import Keyring
from router.tenancy.records import AuditRecord, Scope
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import UsageQuery
from shared.errors import Unauthenticated
from tests.fakes import tenancy
from tests.fakes.commands import WHOLE, Octavo


async def _known(path: Path, key: str) -> str:
    """Whose key it is to a router that starts now."""
    store = SqliteStore(path)
    try:
        keyring = Keyring(store)
        await keyring.refresh()
        caller = keyring.authenticate(key)
        return f"{caller.tenant.id}/{caller.key}"
    except Unauthenticated:
        return "nobody"
    finally:
        await store.aclose()


async def _audit(path: Path) -> list[AuditRecord]:
    store = SqliteStore(path)
    try:
        return list(await store.audit())
    finally:
        await store.aclose()


async def _charge(path: Path, at: float, *charges: Any) -> None:
    store = SqliteStore(path, clock=lambda: at)
    try:
        for wanted, settlement in charges:
            await store.reserve(wanted)
            assert await store.settle(settlement)
    finally:
        await store.aclose()


def test_what_is_shown_is_what_was_applied(applied: Path, octavo: Octavo, tmp_path: Path) -> None:
    shown = octavo("tenant", "show", "acme")[1]
    assert yaml.safe_load(shown)["tenants"] == yaml.safe_load(WHOLE)["tenants"][:1]
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    assert octavo("tenant", "apply", "-f", str(again))[0] == 0
    assert len(asyncio.run(_audit(applied))) == 2, "what is equal already is no change"


def test_a_wrong_document_changes_nothing_and_makes_no_store(store: Path, octavo: Octavo, tmp_path: Path) -> None:
    document = tmp_path / "wrong.yaml"
    document.write_text("tenants: [{name: good}, {name: bad, weight: 0}]")
    status, out, err = octavo("tenant", "apply", "-f", str(document))
    assert (status, out) == (1, "")
    assert err.startswith("octavo: tenants[1]: weight must be above 0")
    assert not store.exists()


def test_a_document_may_come_by_standard_input(store: Path, octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("tenants: [{name: solo}]"))
    assert octavo("tenant", "apply", "-f", "-")[:2] == (0, "solo\n")
    assert store.stat().st_mode & 0o077 == 0


def test_a_list_has_each_tenant_with_its_keys_and_limits(applied: Path, octavo: Octavo) -> None:
    del applied
    octavo("key", "create", "acme", "main")
    head, acme, other = octavo("tenant", "list")[1].splitlines()
    assert head.split() == ["TENANT", "WEIGHT", "CLASS", "KEYS", "LIMITS"]
    assert acme.split() == ["acme", "2.5", "0", "1", "requests_per_minute=60"]
    assert other.split() == ["other", "1", "0", "0", "none"]
    assert [tenant["name"] for tenant in json.loads(octavo("tenant", "list", "--json")[1])] == ["acme", "other"]


def test_a_created_key_is_the_only_thing_on_stdout_and_is_known_until_it_is_revoked(
    applied: Path, octavo: Octavo
) -> None:
    status, out, err = octavo("key", "create", "acme", "main", "--scope", "infer", "admin")
    key = out.strip()
    assert (status, out) == (0, f"{key}\n")
    assert key not in err
    assert asyncio.run(_known(applied, key)) == "acme/main"
    assert octavo("key", "revoke", "acme", "main") == (0, "", "")
    assert asyncio.run(_known(applied, key)) == "nobody"


@pytest.mark.parametrize(
    "scopes",
    [
        ("--scope", "infer", "adapters"),
        ("--scope", "infer", "--scope", "adapters"),
        ("--scope", "adapters", "--scope", "infer", "adapters"),
    ],
)
def test_every_scope_that_was_given_counts_however_it_was_given(
    applied: Path, octavo: Octavo, scopes: tuple[str, ...]
) -> None:
    del applied
    assert octavo("key", "create", "acme", "main", *scopes)[0] == 0
    assert octavo("key", "create", "acme", "plain")[0] == 0
    main_key, plain = json.loads(octavo("key", "list", "--json")[1])
    assert (main_key["scopes"], plain["scopes"]) == (["adapters", "infer"], ["infer"])


def test_no_secret_is_in_the_store_its_log_or_a_list(applied: Path, octavo: Octavo) -> None:
    key = octavo("key", "create", "acme", "main")[1].strip()
    secret = key.rsplit("-", 1)[1]
    files = [path for path in applied.parent.iterdir() if path.name.startswith(applied.name)]
    assert not any(secret.encode() in path.read_bytes() for path in files)
    listed = octavo("key", "list")[1] + octavo("key", "list", "--json")[1] + repr(asyncio.run(_audit(applied)))
    assert key.split("-")[1] in listed
    assert secret not in listed


def test_a_key_expires_when_it_was_told_to(applied: Path, octavo: Octavo) -> None:
    del applied
    before = time.time()
    octavo("key", "create", "acme", "short", "--expires", "30d")
    octavo("key", "create", "other", "long", "--expires", "2999-01-01")
    short, long = json.loads(octavo("key", "list", "--json")[1])
    assert before + 30 * 86_400 <= short["expires"] <= time.time() + 30 * 86_400
    assert long["expires"] == 32_472_144_000
    assert "2999-01-01T00:00:00Z" in octavo("key", "list", "other")[1]
    assert "short" not in octavo("key", "list", "other")[1]


def test_a_key_that_would_have_expired_is_not_made(applied: Path, octavo: Octavo) -> None:
    del applied
    assert octavo("key", "create", "acme", "old", "--expires", "2001-01-01")[0] == 1
    assert json.loads(octavo("key", "list", "--json")[1]) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenant", "show", "ghost"), "no tenant 'ghost'"),
        (("tenant", "delete", "ghost"), "no tenant 'ghost'"),
        (("key", "create", "ghost", "main"), "no tenant 'ghost'"),
        (("key", "list", "ghost"), "no tenant 'ghost'"),
        (("key", "create", "acme", "No Name"), "name must be 1 to 64"),
        (("key", "revoke", "acme", "ghost"), "the tenant 'acme' has no key 'ghost'"),
        (("tenant", "apply", "-f", "/nonexistent.yaml"), "/nonexistent.yaml: No such file or directory"),
    ],
)
def test_what_fails_is_told_in_one_line(applied: Path, octavo: Octavo, arguments: tuple[str, ...], said: str) -> None:
    del applied
    status, out, err = octavo(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith(f"octavo: {said}")
    assert len(err.splitlines()) == 1


def test_a_second_key_of_one_name_is_refused_and_not_shown(applied: Path, octavo: Octavo) -> None:
    del applied
    octavo("key", "create", "acme", "main")
    status, out, err = octavo("key", "create", "acme", "main")
    assert (status, out) == (1, "")
    assert "has a key 'main'" in err


def test_who_revokes_by_the_key_itself_does_not_read_it_again(applied: Path, octavo: Octavo) -> None:
    del applied
    key = octavo("key", "create", "acme", "main")[1].strip()
    status, out, err = octavo("key", "revoke", "acme", key)
    assert (status, out) == (1, "")
    assert key not in err


def test_a_deleted_tenant_takes_its_keys_along_and_leaves_its_usage(applied: Path, octavo: Octavo) -> None:
    key = octavo("key", "create", "acme", "main")[1].strip()
    asyncio.run(_charge(applied, time.time(), (tenancy.wanted("c1"), tenancy.settlement("c1", output=7))))
    assert octavo("tenant", "delete", "acme") == (0, "", "")
    assert asyncio.run(_known(applied, key)) == "nobody"
    (left,) = csv.DictReader(io.StringIO(octavo("usage")[1]))
    assert (left["tenant"], left["output_tokens"]) == ("acme", "7")


def test_every_change_names_the_local_user(applied: Path, octavo: Octavo) -> None:
    octavo("key", "create", "acme", "main", "--scope", "admin")
    octavo("key", "revoke", "acme", "main")
    octavo("tenant", "delete", "other")
    log = asyncio.run(_audit(applied))
    assert [(line.action, line.subject) for line in log[2:]] == [
        ("key.add", "acme/main"),
        ("key.revoke", "acme/main"),
        ("tenant.delete", "other"),
    ]
    assert {line.actor for line in log} == {actor()}


def test_only_apply_makes_a_store(store: Path, octavo: Octavo) -> None:
    for arguments in (("tenant", "list"), ("key", "list"), ("usage",), ("key", "create", "acme", "main")):
        status, out, err = octavo(*arguments)
        assert (status, out) == (1, "")
        assert "there is no store" in err
    assert not store.exists()


def test_a_file_that_is_no_store_is_told_and_left_alone(store: Path, octavo: Octavo) -> None:
    store.write_bytes(b"no database " * 100)
    status, _, err = octavo("tenant", "list")
    assert (status, err) == (1, f"octavo: {store}: file is not a database\n")
    assert store.read_bytes() == b"no database " * 100


def test_without_a_store_named_the_option_is_asked_for(octavo: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_ENV, raising=False)
    for arguments in (("tenant", "list"), ("key", "list"), ("usage",)):
        status, _, err = octavo(*arguments)
        assert status == 2
        assert "--store" in err


def test_audit_tells_what_is_asked_of_it_and_no_key(applied: Path, octavo: Octavo) -> None:
    key = octavo("key", "create", "acme", "main")[1].strip()
    octavo("key", "create", "other", "main")
    octavo("tenant", "delete", "acme")
    text = octavo("audit")[1]
    assert key.split("-")[2] not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["action"], row["subject"]) for row in rows] == [
        *(("tenant.put", "acme"), ("tenant.put", "other"), ("key.add", "acme/main"), ("key.add", "other/main")),
        ("tenant.delete", "acme"),
    ]
    assert {(row["actor"], row["origin"]) for row in rows} == {(actor(), "")}
    assert ('"weight": 2.5' in rows[0]["after"], rows[0]["before"]) == (True, "")
    assert ('"weight": 2.5' in rows[4]["before"], rows[4]["after"]) == (True, "")
    for arguments, wanted in (
        (("--action", "key"), 2),
        (("--action", "key.add", "--subject", "acme"), 1),
        (("--subject", "acme"), 3),
        (("--subject", "acm"), 0),
        (("--actor", "nobody"), 0),
        (("--since", "1h"), 5),
        (("--until", "1h"), 0),
    ):
        assert len(json.loads(octavo("audit", "--format", "json", *arguments)[1])) == wanted, arguments


def test_usage_sums_what_the_ledger_has_of_a_tenant_in_a_time(applied: Path, octavo: Octavo) -> None:
    noon = past()("2026-03-01T12:00:00")
    for hour, (tenant, output) in enumerate((("acme", 1), ("acme", 10), ("other", 100), ("acme", 1_000))):
        charge = (
            tenancy.wanted(f"c{hour}", of=tenant),
            tenancy.settlement(f"c{hour}", prompt=5, cached=2, output=output),
        )
        asyncio.run(_charge(applied, noon + 3_600 * hour, charge))
    arguments = ("usage", "--tenant", "acme", "--since", "2026-03-01T12:00:00Z", "--until", "2026-03-01T16:00+01:00")
    (total,) = json.loads(octavo(*arguments, "--format", "json")[1])
    assert (total["requests"], total["prompt_tokens"], total["cached_tokens"], total["output_tokens"]) == (2, 10, 4, 11)
    (row,) = csv.DictReader(io.StringIO(octavo(*arguments)[1]))
    assert row == {name: str(value) for name, value in total.items()}
    assert len(json.loads(octavo("usage", "--format", "json")[1])) == 2
    assert json.loads(octavo("usage", "--format", "json", "--since", "1h")[1]) == []


def test_lines_of_a_ledger_longer_than_a_page_come_once_each_in_order(
    applied: Path, octavo: Octavo, monkeypatch: pytest.MonkeyPatch
) -> None:
    charges = [(tenancy.wanted(f"c{at}"), tenancy.settlement(f"c{at}", output=at)) for at in range(6)]
    asyncio.run(_charge(applied, tenancy.NOW, *charges))
    pages: list[int] = []
    real = usage._pages

    async def small(store: Any, query: UsageQuery) -> Any:
        async for page in real(store, UsageQuery(tenant=query.tenant, limit=3)):
            pages.append(len(page))
            yield page

    monkeypatch.setattr(usage, "_pages", small)
    rows = list(csv.DictReader(io.StringIO(octavo("usage", "--lines")[1])))
    told = json.loads(octavo("usage", "--lines", "--format", "json")[1])
    assert pages == [3, 3, 0] * 2
    assert [row["id"] for row in rows] == [line["id"] for line in told] == [f"c{at}" for at in range(6)]
    assert [int(row["output_tokens"]) for row in rows] == [line["output_tokens"] for line in told] == list(range(6))


def test_a_span_is_ago_or_from_now_and_a_time_without_a_zone_is_utc() -> None:
    assert past(lambda: 1_000_000.0)("2h") == 1_000_000 - 7_200
    assert future(lambda: 1_000_000.0)("1w") == 1_000_000 + 604_800
    assert past()("1970-01-02") == 86_400
    assert past()("1970-01-01T01:00:00+01:00") == 0


@pytest.mark.parametrize("text", ["yesterday", "", "12", "5y", "2026-13-01", "-3d"])
def test_what_is_no_time_is_refused(applied: Path, octavo: Octavo, text: str) -> None:
    del applied
    status, _, err = octavo("usage", f"--since={text}")
    assert status == 2
    assert "is no time" in err


def test_the_commands_scopes_are_the_stores() -> None:
    assert set(SCOPES) == {scope.value for scope in Scope}


def test_a_store_of_another_version_is_told(applied: Path, octavo: Octavo) -> None:
    with sqlite3.connect(applied) as db:
        db.execute("PRAGMA user_version = 99")
    status, _, err = octavo("tenant", "list")
    assert status == 1
    assert "version 99" in err
