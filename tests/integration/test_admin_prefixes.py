"""Public prefixes in the operators' API, over both of its edges."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos import admin_pb2 as pb
from router.tenancy.store import AuditQuery
from shared.errors import OctavoError
from tests.fakes.operators import Operators, operators
from tests.fakes.tenancy import NOW


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Operators]:
    async with operators(tmp_path) as both:
        yield both


PREFIX = "You are a clerk of the town library."


async def test_a_public_prefix_is_made_read_changed_and_deleted_over_http(admin: Operators) -> None:
    made = await admin.http.put("/prefixes/clerk", json={"system": PREFIX, "models": ["tiny", "big-*"]})
    whole = {"name": "clerk", "system": PREFIX, "models": ["tiny", "big-*"], "created": NOW}
    assert (made.status_code, made.json()) == (200, whole)
    assert (await admin.http.get("/prefixes/clerk")).json() == whole
    await admin.http.put("/prefixes/tale", json={"text": "Once upon a time"})
    listed = (await admin.http.get("/prefixes", params={"page_size": 1})).json()
    assert listed["prefixes"] == [
        {"name": "clerk", "kind": "system", "characters": 36, "models": ["tiny", "big-*"], "created": NOW}
    ]
    rest = (await admin.http.get("/prefixes", params={"page_token": listed["next_page_token"]})).json()
    assert [(one["name"], one["kind"], one["models"]) for one in rest["prefixes"]] == [("tale", "text", ["*"])]
    assert [prefix.name for prefix in (await admin.store.snapshot()).prefixes] == ["clerk", "tale"]
    assert (await admin.http.delete("/prefixes/tale")).status_code == 204
    gone = [(await admin.http.request(method, "/prefixes/tale")).status_code for method in ("GET", "DELETE")]
    assert gone == [404, 404]
    said = [(action, subject, origin) for _, action, subject, origin in await admin.actions()]
    assert said == [(f"prefix.{what}", name, "127.0.0.1") for what, name in PREFIX_CHANGES]
    assert PREFIX not in (await admin.http.get("/audit")).text


PREFIX_CHANGES = (("put", "clerk"), ("put", "tale"), ("delete", "tale"))


async def test_a_public_prefix_is_made_read_changed_and_deleted_over_grpc(admin: Operators) -> None:
    given = pb.Prefix(name="clerk", system=PREFIX, models=pb.Patterns(patterns=["tiny"]), created=5)
    made = await admin.call("PutPrefix", pb.PutPrefixRequest(prefix=given))
    assert (made.name, made.system, list(made.models.patterns), made.created) == ("clerk", PREFIX, ["tiny"], NOW)
    assert await admin.call("GetPrefix", pb.GetPrefixRequest(name="clerk")) == made
    await admin.call("PutPrefix", pb.PutPrefixRequest(prefix=pb.Prefix(name="clerk", text="Once upon a time")))
    (listed,) = (await admin.call("ListPrefixes", pb.ListPrefixesRequest())).prefixes
    assert (listed.name, listed.system, listed.characters, list(listed.models.patterns)) == ("clerk", False, 16, ["*"])
    (_, line) = [line.record for line in await admin.store.audit_lines(AuditQuery(action="prefix"))]
    assert (line.before, line.detail) == (
        "36 characters of system, models tiny",
        "16 characters of text, models *",
    )
    await admin.call("DeletePrefix", pb.DeletePrefixRequest(name="clerk"))
    for method, request in (
        ("GetPrefix", pb.GetPrefixRequest(name="clerk")),
        ("DeletePrefix", pb.DeletePrefixRequest(name="clerk")),
    ):
        with pytest.raises(OctavoError) as gone:
            await admin.call(method, request)
        assert gone.value.code == "not_found"
    with pytest.raises(OctavoError) as wrong:
        await admin.call("PutPrefix", pb.PutPrefixRequest(prefix=pb.Prefix(name="clerk")))
    assert wrong.value.param == "prefix.text"
