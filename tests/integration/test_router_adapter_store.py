"""Adapters that were loaded at run time, in the store that routers share: what one does the others know, and their workers too."""

from pathlib import Path
from typing import Any

import pytest

from router.tenancy.records import AdapterRecord, Scope
from tests.fakes.scripted_worker import ScriptedWorker, until
from tests.fakes.tenancy import add
from tests.fakes.tenanted import Tenanted, tenanted
from tests.integration.test_router_adapters import B, entry, scripted

ADAPTERS = "/v1/adapters"
DIGEST = b"/a".ljust(32)


async def operator(router: Tenanted) -> dict[str, str]:
    key = await add(router.store, "root", scopes=frozenset({Scope.ADMIN, Scope.INFER}))
    await router.known()
    return {"Authorization": f"Bearer {key}"}


async def loaded(router: Tenanted, headers: dict[str, str], **body: Any) -> dict[str, Any]:
    answer = await router.http.post(ADAPTERS, json={"name": "style", "source": "/a", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def has(worker: ScriptedWorker, name: str = "style") -> bool:
    return name in worker.adapters


async def test_what_is_loaded_pinned_and_unloaded_is_kept_and_audited(tmp_path: Path) -> None:
    async with scripted() as worker, tenanted(tmp_path, worker.target) as router:
        headers = await operator(router)
        await loaded(router, headers)
        await router.http.patch(f"{ADAPTERS}/style", json={"pinned": True}, headers=headers)
        (record,) = (await router.store.snapshot()).adapters
        assert record == AdapterRecord(name="style", source="/a", digest=DIGEST, pinned=True, model="tiny")
        assert (await router.http.delete(f"{ADAPTERS}/style", headers=headers)).status_code == 200
        assert (await router.store.snapshot()).adapters == ()
        log = [(line.actor, line.action, line.subject) for line in await router.store.audit()]
        assert log[-3:] == [
            ("root/main", "adapter.put", "style"),
            ("root/main", "adapter.put", "style"),
            ("root/main", "adapter.delete", "style"),
        ]


async def test_another_router_gives_its_own_workers_what_was_loaded_at_the_first(tmp_path: Path) -> None:
    one, two = scripted(worker_id="w1"), scripted(worker_id="w2")
    async with one, two, tenanted(tmp_path, one.target) as first, tenanted(tmp_path, two.target) as second:
        headers = await operator(first)
        await second.known()
        await loaded(first, headers, pin=True)
        await until(lambda: has(two), "the adapter at the other's worker")
        assert two.loads[-1].digest == DIGEST
        await until(lambda: two.adapters["style"].pinned, "the pin")
        key = headers["Authorization"].removeprefix("Bearer ")
        answer = await until_status(second, key, 200)
        assert answer["model"] == "style"
        await first.http.delete(f"{ADAPTERS}/style", headers=headers)
        await until(lambda: not has(two), "its end there")
        await until_status(second, key, 404)


async def until_status(router: Tenanted, key: str, status: int) -> dict[str, Any]:
    """The answer, once one has this status; until then there is none of the base's."""
    while (answer := await router.post(key, model="style")).status_code != status:
        assert answer.status_code in (200, 404, 503), answer.text
    return answer.json()


async def test_a_router_that_begins_again_knows_what_was_loaded_though_no_worker_does(tmp_path: Path) -> None:
    async with scripted() as worker:
        async with tenanted(tmp_path, worker.target) as router:
            headers = await operator(router)
            await loaded(router, headers)
        worker.adapters.clear()
        async with tenanted(tmp_path, worker.target) as router:
            await until(lambda: has(worker), "the adapter")
            assert worker.loads[-1].source == "/a"


async def test_with_a_store_what_a_worker_has_besides_is_left_alone_and_not_spread(tmp_path: Path) -> None:
    one = scripted(entry("own", B, source="/b", listed=False), worker_id="w1")
    two = scripted(worker_id="w2")
    async with one, two, tenanted(tmp_path, one.target, two.target) as router:
        headers = await operator(router)
        await loaded(router, headers)
        assert (has(one, "own"), has(two, "own")) == (True, False)
        assert [record.name for record in (await router.store.snapshot()).adapters] == ["style"]


async def test_a_tenants_key_is_held_to_what_its_tenant_may_have_resident(tmp_path: Path) -> None:
    async with scripted() as worker, tenanted(tmp_path, worker.target) as router:
        key = await add(router.store, "acme", scopes=frozenset({Scope.ADAPTERS, Scope.INFER}), resident_adapters=1)
        await router.known()
        headers = {"Authorization": f"Bearer {key}"}
        assert (await router.http.post(ADAPTERS, json={"name": "one"}, headers=headers)).status_code == 200
        refused = await router.http.post(ADAPTERS, json={"name": "two"}, headers=headers)
        assert (refused.status_code, "resident adapters" in refused.text) == (429, True)
        assert set(worker.adapters) == {"acme/one"}
        assert (await router.http.get(ADAPTERS, headers=headers)).json()["data"][0]["id"] == "acme/one"
        assert (await router.http.get(ADAPTERS)).status_code == 401


@pytest.mark.parametrize("scopes", [frozenset({Scope.INFER}), frozenset({Scope.ADAPTERS})])
async def test_a_key_without_the_scope_may_neither_list_nor_pin(tmp_path: Path, scopes: frozenset[Scope]) -> None:
    async with scripted(entry("acme/own", B)) as worker, tenanted(tmp_path, worker.target) as router:
        key = await add(router.store, "acme", scopes=scopes)
        await router.known()
        headers = {"Authorization": f"Bearer {key}"}
        listed = 200 if Scope.ADAPTERS in scopes else 403
        assert (await router.http.get(ADAPTERS, headers=headers)).status_code == listed
        answer = await router.http.patch(f"{ADAPTERS}/own", json={"pinned": True}, headers=headers)
        assert answer.status_code == 403
        assert not worker.pins
