"""The operators' API over both of its edges: who may call, what changes, what stands in the audit log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protos import admin_pb2 as pb
from router.admin.service import Admin, Call
from router.tenancy.keyring import Keyring
from router.tenancy.records import DENIED
from router.tenancy.sqlite.store import SqliteStore
from shared.errors import Conflict, OctavoError
from tests.fakes import tenancy
from tests.fakes.operators import Operators, operators
from tests.fakes.tenancy import NOW

NAN = float("nan")
BEYOND = {"authorization": "Bearer octk-abcdefghijkl-" + "x" * 43}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Operators]:
    async with operators(tmp_path) as both:
        yield both


ROUTES = (
    *(
        ("GET", path)
        for path in ("/tenants", "/tenants/acme", "/keys", "/usage", "/usage/totals", "/audit", "/workers", "/prefixes")
    ),
    *(("GET", "/prefixes/clerk"), ("PUT", "/prefixes/clerk"), ("DELETE", "/prefixes/clerk")),
    *(("PUT", "/tenants/acme"), ("DELETE", "/tenants/acme"), ("POST", "/tenants:apply"), ("GET", "/nothing")),
    *(("POST", "/tenants/acme/keys"), ("DELETE", "/tenants/acme/keys/main")),
    ("POST", "/workers/w1:drain"),
)
CALLS: tuple[tuple[str, Any], ...] = (
    ("ListTenants", pb.ListTenantsRequest()),
    ("GetTenant", pb.GetTenantRequest(name="acme")),
    ("ApplyTenants", pb.ApplyTenantsRequest(tenants=[pb.Tenant(name="x")])),
    ("DeleteTenant", pb.DeleteTenantRequest(name="acme")),
    ("CreateKey", pb.CreateKeyRequest(tenant="acme", name="x")),
    ("ListKeys", pb.ListKeysRequest()),
    ("RevokeKey", pb.RevokeKeyRequest(tenant="acme", name="main")),
    ("ListPrefixes", pb.ListPrefixesRequest()),
    ("GetPrefix", pb.GetPrefixRequest(name="clerk")),
    ("PutPrefix", pb.PutPrefixRequest(prefix=pb.Prefix(name="clerk", text="x"))),
    ("DeletePrefix", pb.DeletePrefixRequest(name="clerk")),
    ("QueryUsage", pb.QueryUsageRequest()),
    ("SumUsage", pb.SumUsageRequest()),
    ("QueryAudit", pb.QueryAuditRequest()),
    ("ListWorkers", pb.ListWorkersRequest()),
    ("Drain", pb.DrainWorkerRequest(worker="w1")),
)


async def test_every_operation_needs_an_admins_key_and_changes_nothing_without(admin: Operators) -> None:
    assert {method for method, _ in CALLS} == {m.name for m in pb.DESCRIPTOR.services_by_name["Admin"].methods}
    before = await admin.store.revision()
    for given, status, code in (
        ("nothing", 401, "invalid_api_key"),
        ("octk-abcdefghijkl-" + "x" * 43, 401, "invalid_api_key"),
        (admin.key[:-1], 401, "invalid_api_key"),
        (admin.plain, 403, "permission_denied"),
    ):
        headers = {"authorization": f"Bearer {given}"}
        for method, path in ROUTES:
            answer = await admin.http.request(method, path, headers=headers, json=None if method == "GET" else {})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (method, path)
        for method, request in CALLS:
            with pytest.raises(OctavoError) as refused:
                await admin.call(method, request, given)
            assert refused.value.code == code, method
    assert await admin.store.revision() == before


async def test_while_no_tenant_is_made_nobody_is_an_operator(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "octavo.db")
    keyring = Keyring(store)
    await keyring.refresh()
    service = Admin(store, keyring, list, tenancy.no_drain)
    for key in (None, "", "octk-abcdefghijkl-" + "x" * 43):
        with pytest.raises(OctavoError, match="octavo key create"):
            service.operator(Call(credentials=lambda key=key: key, origin="127.0.0.1", asked="ListTenants"))
    await service.denials.flushed()
    (line,) = await store.audit()
    assert (line.action, line.actor, line.detail) == (DENIED, "", "invalid_api_key")
    await store.aclose()


async def test_head_tells_what_get_would_and_needs_the_same_key(admin: Operators) -> None:
    got, head = await admin.http.get("/tenants/acme"), await admin.http.head("/tenants/acme")
    assert (head.status_code, head.headers["etag"], head.content) == (200, got.headers["etag"], b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert (await admin.http.head("/tenants/acme", headers={"authorization": ""})).status_code == 401
    assert (await admin.http.head("/workers/w1:drain")).headers["allow"] == "POST"


async def test_a_tenant_is_made_read_changed_and_deleted_over_http(admin: Operators) -> None:
    made = await admin.http.put(
        "/tenants/beta", json={"weight": 2, "limits": {"max_n": 3}}, headers={"if-none-match": "*"}
    )
    assert made.status_code == 200
    assert made.json()["limits"] == {"max_n": 3}
    tag = made.headers["etag"]
    again = await admin.http.put("/tenants/beta", json={}, headers={"if-none-match": "*"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    assert (await admin.http.get("/tenants/beta")).headers["etag"] == tag
    changed = await admin.http.put("/tenants/beta", json={"weight": 3}, headers={"if-match": tag})
    assert (changed.json()["weight"], changed.json()["limits"]) == (3, {})
    for method in ("PUT", "DELETE"):
        stale = await admin.http.request(method, "/tenants/beta", json={}, headers={"if-match": tag})
        assert (stale.status_code, stale.json()["error"]["param"]) == (409, "etag")
    assert (await admin.http.delete("/tenants/beta", headers={"if-match": changed.headers["etag"]})).status_code == 204
    assert (await admin.http.get("/tenants/beta")).status_code == 404
    said = [(action, subject) for _, action, subject, _ in await admin.actions()]
    assert said == [("tenant.put", "beta"), ("tenant.put", "beta"), ("tenant.delete", "beta")]


async def test_what_was_read_and_is_written_back_replaces_nothing_that_came_between(admin: Operators) -> None:
    read = (await admin.http.get("/tenants/acme")).json()
    assert (await admin.http.put("/tenants/acme", json={**read, "weight": 2})).status_code == 200
    late = await admin.http.put("/tenants/acme", json={**read, "weight": 3})
    assert (late.status_code, late.json()["error"]["param"]) == (409, "etag")
    assert (await admin.http.get("/tenants/acme")).json()["weight"] == 2


async def test_a_tenant_is_made_read_changed_and_deleted_over_grpc(admin: Operators) -> None:
    given = pb.Tenant(name="beta", weight=2, limits=pb.Limits(max_n=3), models=pb.Patterns(), labels={"plan": "gold"})
    (made,) = (await admin.call("ApplyTenants", pb.ApplyTenantsRequest(tenants=[given], only_new=True))).tenants
    assert (made.weight, made.limits.max_n, list(made.models.patterns), list(made.adapters.patterns)) == (
        2,
        3,
        [],
        ["*"],
    )
    assert await admin.call("GetTenant", pb.GetTenantRequest(name="beta")) == made
    for request in (
        pb.ApplyTenantsRequest(tenants=[given], only_new=True),
        pb.ApplyTenantsRequest(tenants=[pb.Tenant(name="gamma"), pb.Tenant(name="beta", etag="old")]),
    ):
        with pytest.raises(Conflict):
            await admin.call("ApplyTenants", request)
    with pytest.raises(Conflict):
        await admin.call("DeleteTenant", pb.DeleteTenantRequest(name="beta", etag="old"))
    names = [tenant.name for tenant in (await admin.call("ListTenants", pb.ListTenantsRequest())).tenants]
    assert names == ["acme", "beta", "ops"], "all or none"
    await admin.call("DeleteTenant", pb.DeleteTenantRequest(name="beta", etag=made.etag))
    with pytest.raises(OctavoError) as gone:
        await admin.call("GetTenant", pb.GetTenantRequest(name="beta"))
    assert (gone.value.code, gone.value.param) == ("not_found", "name")


async def test_of_two_that_change_the_same_state_one_wins(admin: Operators) -> None:
    tag = (await admin.http.get("/tenants/acme")).headers["etag"]
    answers = await asyncio.gather(
        *(admin.http.put("/tenants/acme", json={"weight": n}, headers={"if-match": tag}) for n in range(1, 9))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7


async def test_a_key_is_shown_once_works_at_once_and_is_revoked_at_once(admin: Operators) -> None:
    made = await admin.http.post("/tenants/ops/keys", json={"name": "second", "scopes": ["admin"], "expires": NOW + 60})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    secret = made.json()["key"]
    other = await admin.call("CreateKey", pb.CreateKeyRequest(tenant="ops", name="third", scopes=[pb.KEY_SCOPE_ADMIN]))
    for key in (secret, other.secret):
        listed = (await admin.call("ListKeys", pb.ListKeysRequest(tenant="ops"), key)).keys
        assert [one.name for one in listed] == ["main", "second", "third"]
    texts = (await admin.http.get("/keys")).text + (await admin.http.get("/audit")).text
    assert not any(key.split("-")[2] in texts for key in (secret, other.secret, admin.key))
    assert (await admin.http.delete("/tenants/ops/keys/second")).status_code == 204
    await admin.call("RevokeKey", pb.RevokeKeyRequest(tenant="ops", name="third"))
    for key in (secret, other.secret):
        with pytest.raises(OctavoError) as refused:
            await admin.call("ListKeys", pb.ListKeysRequest(), key)
        assert refused.value.code == "invalid_api_key"
    assert await admin.actions() == [
        ("ops/main", action, subject, "127.0.0.1")
        for action, subject in (
            *(("key.add", "ops/second"), ("key.add", "ops/third")),
            *(("key.revoke", "ops/second"), ("key.revoke", "ops/third")),
        )
    ]


async def test_the_audit_log_tells_what_was_before_and_what_is_after(admin: Operators) -> None:
    await admin.http.put("/tenants/acme", json={"weight": 5})
    (line,) = (
        await admin.http.get("/audit", params={"actor": "ops/main", "action": "tenant", "subject": "acme"})
    ).json()["lines"]
    assert (line["time"], line["origin"], line["action"]) == (NOW, "127.0.0.1", "tenant.put")
    assert ('"weight": 1.0' in line["before"], '"requests_per_minute": 60' in line["before"]) == (True, True)
    assert '"weight": 5' in line["after"]
    (told,) = (await admin.call("QueryAudit", pb.QueryAuditRequest(actor="ops/main"))).lines
    assert (told.before, told.after) == (line["before"], line["after"])


async def test_a_key_that_was_written_where_none_belongs_is_in_no_line_of_the_audit_log(admin: Operators) -> None:
    await admin.http.put("/tenants/acme", json={"labels": {"note": admin.plain}})
    await admin.http.put("/tenants/acme", json={})
    shown = [(await admin.http.get("/audit", params={"format": form})).text for form in ("json", "csv")]
    assert all("octk-***" in text and admin.plain.split("-")[2] not in text for text in shown)


async def test_denied_calls_stand_in_the_audit_log_with_who_where_and_why_and_no_key(admin: Operators) -> None:
    wrong = "octk-abcdefghijkl-" + "x" * 43
    for given in (wrong, admin.key[:-1], admin.plain):
        await admin.http.delete("/tenants/acme", headers={"authorization": f"Bearer {given}"})
    await admin.http.get(f"/tenants/{wrong}", headers={"authorization": "Bearer nothing", "x-api-key": wrong})
    await admin.http.get("/keys", params={"key": wrong})
    with pytest.raises(OctavoError):
        await admin.call("RevokeKey", pb.RevokeKeyRequest(tenant="acme", name="main"), admin.plain)
    lines = await admin.denied()
    assert [(line.actor, line.subject, line.detail) for line in lines] == [
        ("", "DELETE '/admin/v1/tenants/acme'", "invalid_api_key"),
        ("acme/main", "DELETE '/admin/v1/tenants/acme'", "permission_denied"),
        ("", "GET '/admin/v1/tenants/octk-***'", "invalid_value"),
    ], "of each kind the first"
    assert {(line.origin, line.time) for line in lines} == {("127.0.0.1", NOW)}
    shown = (await admin.http.get("/audit")).text
    assert not any(key.split("-")[2] in shown for key in (wrong, admin.key, admin.plain))
    await admin.service.denials.aclose()
    more = [(line.actor, line.subject, line.detail) for line in (await admin.denied())[3:]]
    assert more == [
        ("", "", "invalid_api_key, 1 more within 600 s"),
        ("acme/main", "", "permission_denied, 1 more within 600 s"),
        ("", "", "invalid_value, 1 more within 600 s"),
    ]


async def test_lists_come_in_pages_that_miss_nothing_and_repeat_nothing(admin: Operators) -> None:
    for number in range(25):
        wanted = tenancy.wanted(f"c{number:02}", of="acme")
        await admin.store.reserve(wanted)
        await admin.store.settle(tenancy.settlement(f"c{number:02}", output=number))
    await admin.http.post("/tenants:apply", json={"tenants": [{"name": f"t{number:02}"} for number in range(25)]})

    async def pages(path: str, key: str) -> list[list[Any]]:
        found, token = [], ""
        while True:
            answer = (await admin.http.get(path, params={"page_size": 10, "page_token": token})).json()
            found.append(answer[key])
            if not (token := answer["next_page_token"]):
                return found

    lines = await pages("/usage", "lines")
    assert [len(page) for page in lines] == [10, 10, 5]
    assert [line["id"] for page in lines for line in page] == [f"c{number:02}" for number in range(25)]
    names = [tenant["name"] for page in await pages("/tenants", "tenants") for tenant in page]
    assert names == sorted({*names}) == ["acme", "ops", *(f"t{number:02}" for number in range(25))]
    whole = await admin.call("QueryUsage", pb.QueryUsageRequest(page_size=25))
    assert [line.output_tokens for line in whole.lines] == list(range(25))
    rest = await admin.call("QueryUsage", pb.QueryUsageRequest(page_token=whole.next_page_token))
    assert (len(rest.lines), rest.next_page_token) == (0, "")
    (total,) = (await admin.http.get("/usage/totals", params={"tenant": "acme"})).json()["totals"]
    assert (total["requests"], total["output_tokens"]) == (25, sum(range(25)))
    csv = await admin.http.get("/usage", params={"format": "csv", "page_size": 5})
    assert len(csv.text.splitlines()) == 6
    assert csv.headers["x-next-page-token"]


WRONG: tuple[tuple[str, str, Any, str | None], ...] = (
    ("GET", "/tenants?page_size=0", None, "page_size"),
    ("GET", "/tenants?page_size=1001", None, "page_size"),
    ("GET", "/usage?page_token=abc", None, "page_token"),
    ("GET", "/usage?tenannt=acme", None, "tenannt"),
    ("GET", "/usage?tenant=a&tenant=b", None, "tenant"),
    ("GET", "/usage?since=yesterday", None, "since"),
    ("GET", "/usage?until=nan", None, "until"),
    ("GET", "/usage?format=xml", None, "format"),
    ("PUT", "/tenants/acme", [], None),
    ("PUT", "/tenants/acme", {"name": "other"}, "name"),
    ("PUT", "/tenants/acme", {"weight": 0}, "weight"),
    ("PUT", "/tenants/acme", {"weigth": 1}, None),
    ("PUT", "/tenants/acme", {"weight": True}, "weight"),
    ("PUT", "/tenants/acme", {"weight": 10**400}, "weight"),
    ("PUT", "/tenants/acme", {"top_class": True}, "top_class"),
    ("PUT", "/tenants/acme", {"top_class": 1.0}, "top_class"),
    ("PUT", "/tenants/acme", {"limits": 0}, "limits"),
    ("PUT", "/tenants/acme", {"limits": False}, "limits"),
    ("PUT", "/tenants/acme", {"labels": []}, "labels"),
    ("PUT", "/tenants/acme", {"limits": {"max_n": 10**400}}, "limits.max_n"),
    ("PUT", "/tenants/acme", {"etag": 5}, "etag"),
    ("PUT", "/tenants/acme", {"limits": {"max_n": 0}}, "limits.max_n"),
    ("POST", "/tenants:apply", {"tenants": []}, "tenants"),
    ("POST", "/tenants:apply", {"tenants": [{"name": "a"}, {"name": "a"}]}, "tenants[1].name"),
    ("POST", "/tenants:apply", {"tenants": [{"name": "A"}]}, "tenants[0].name"),
    ("POST", "/tenants/acme/keys", {}, "name"),
    ("POST", "/tenants/acme/keys", {"name": "x", "scopes": ["root"]}, "scopes"),
    ("POST", "/tenants/acme/keys", {"name": "x", "expires": 5}, "expires"),
    ("POST", "/tenants/acme/keys", {"name": "x", "expires": True}, "expires"),
    ("POST", "/tenants/acme/keys", {"name": "x", "expires": 1e300}, "expires"),
    ("POST", "/tenants/acme/keys", {"name": "x", "expires": 2**64}, "expires"),
    ("POST", "/tenants/acme/keys", {"name": "x", "expires": 10**400}, "expires"),
    ("POST", "/tenants/acme/keys", {"name": "x", "scopes": 0}, "scopes"),
    ("POST", "/tenants/acme/keys", {"name": "x", "scopes": ""}, "scopes"),
    ("POST", "/tenants/acme/keys", {"name": "x", "scopes": []}, "scopes"),
    ("POST", "/tenants:apply", {"tenants": [{"name": "a"}] * 1_001}, "tenants"),
    ("POST", "/tenants:apply", {"tenants": [{"name": "a", "etag": []}]}, "tenants[0].etag"),
    ("POST", "/workers/w1:drain", {"deadline_seconds": 10**400}, "deadline_seconds"),
    ("POST", "/workers/w1:drain", {"deadline_seconds": True}, "deadline_seconds"),
    ("POST", "/tenants/acme/keys", {"name": "x", "scope": "infer"}, "scope"),
    ("POST", "/tenants/nobody/keys", {"name": "x"}, "tenant"),
    ("PUT", "/prefixes/clerk", [], None),
    ("PUT", "/prefixes/clerk", {}, "text"),
    ("PUT", "/prefixes/clerk", {"text": "x", "system": "y"}, "text"),
    ("PUT", "/prefixes/clerk", {"text": 5}, "text"),
    ("PUT", "/prefixes/clerk", {"text": "x", "name": "other"}, "name"),
    ("PUT", "/prefixes/clerk", {"text": "x", "models": "tiny"}, "models"),
    ("PUT", "/prefixes/clerk", {"text": "x", "model": ["tiny"]}, "model"),
    ("PUT", "/prefixes/Clerk", {"text": "x"}, "name"),
    ("GET", "/prefixes?name=clerk", None, "name"),
)


async def test_errors_name_the_parameter(admin: Operators) -> None:
    before = await admin.store.revision()
    for method, path, body, param in WRONG:
        answer = await admin.http.request(method, path, json=body)
        assert answer.status_code in (400, 404), path
        assert answer.json()["error"]["param"] == param, (path, body)
    assert await admin.store.revision() == before


async def test_grpc_errors_name_the_field(admin: Operators) -> None:
    for method, request, param in (
        ("ApplyTenants", pb.ApplyTenantsRequest(), "tenants"),
        ("ApplyTenants", pb.ApplyTenantsRequest(tenants=[pb.Tenant(name="a", weight=-1)]), "tenants[0].weight"),
        ("ApplyTenants", pb.ApplyTenantsRequest(tenants=[pb.Tenant(name="a", limits=pb.Limits(max_n=0))]), "tenants[0].limits.max_n"),
        ("CreateKey", pb.CreateKeyRequest(tenant="acme", name="x", scopes=[0]), "scopes"),
        ("CreateKey", pb.CreateKeyRequest(tenant="acme", name="main"), "name"),
        ("QueryUsage", pb.QueryUsageRequest(page_size=100_000), "page_size"),
        ("RevokeKey", pb.RevokeKeyRequest(tenant="acme", name=admin.plain), "name"),
        ("CreateKey", pb.CreateKeyRequest(tenant="acme", name="x", expires=1e300), "expires"),
        ("QueryUsage", pb.QueryUsageRequest(filter=pb.UsageFilter(since=NAN)), "since"),
        ("SumUsage", pb.SumUsageRequest(filter=pb.UsageFilter(until=NAN)), "until"),
        ("QueryAudit", pb.QueryAuditRequest(until=NAN), "until"),
    ):  # fmt: skip
        with pytest.raises(OctavoError) as refused:
            await admin.call(method, request)
        assert refused.value.param == param, method
        assert admin.plain not in refused.value.message


async def test_workers_are_listed_as_the_router_sees_them(admin: Operators) -> None:
    (told,) = (await admin.http.get("/workers")).json()["workers"]
    assert (told["target"], told["state"], told["model"], told["running"]) == ("127.0.0.1:1", "ready", "tiny", 2)
    (also,) = (await admin.call("ListWorkers", pb.ListWorkersRequest())).workers
    assert (also.worker_id, also.running) == ("w1", 2)


async def test_health_is_told_to_anyone_and_nothing_else_is(admin: Operators) -> None:
    root = str(admin.http.base_url).removesuffix("/admin/v1/")
    async with httpx.AsyncClient(base_url=root) as stranger:
        assert (await stranger.get("/health")).status_code == 200
        for path in ("/", "/docs", "/openapi.json", "/metrics", "/v1/models", "/admin", "/admin/v1/tenants"):
            assert (await stranger.get(path)).status_code == 401, path
