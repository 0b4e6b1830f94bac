"""One tenant's cached prefixes are nothing to another, whatever it sends."""

from pathlib import Path

from router.tenancy import salts
from tests.fakes.engine import fake_worker
from tests.fakes.tenancy import add
from tests.fakes.tenanted import Tenanted, tenanted

PROMPT = list(range(3, 103))  # six whole blocks and some


async def cached(router: Tenanted, key: str, **body: object) -> int:
    """How many tokens of PROMPT were found for this caller."""
    answer = await router.post(key, prompt=PROMPT, **body)
    assert answer.status_code == 200, answer.text
    told: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told


async def test_c52_a_tenant_finds_nothing_of_anothers_prefix(tmp_path: Path) -> None:
    """CVE-2025-46570: the salt comes from the authenticated tenant. B sees 0 cached tokens of A's prefix, A sees its hit."""
    async with fake_worker() as worker, tenanted(tmp_path, worker.target) as router:
        a, b = [await add(router.store, name) for name in ("a", "b")]
        await router.known()
        assert [await cached(router, key) for key in (a, a, b, b)] == [0, 96, 0, 96]
        charged = {(charge.tenant, charge.cached_tokens) for charge in await router.charges()}
        assert charged == {("a", 0), ("a", 96), ("b", 0), ("b", 96)}


async def test_router_case_19_a_clients_salt_reaches_no_other_tenant(tmp_path: Path) -> None:
    """vllm-project/vllm PR 53347: A sending B's salt gets 0 cached tokens; the same tenant with the same salt still hits."""
    async with fake_worker(blocks=128) as worker, tenanted(tmp_path, worker.target) as router:
        a, b = [await add(router.store, name) for name in ("a", "b")]
        await router.known()
        assert [await cached(router, b, cache_salt="mine") for _ in range(2)] == [0, 96]
        assert await cached(router, a, cache_salt="mine") == 0
        snapshot = await router.store.snapshot()
        for salt in (salts.of_tenant(snapshot.secret, tenant) for tenant in snapshot.tenants):
            for text in (salt.hex(), salt.decode("latin-1")):
                assert await cached(router, a, cache_salt=text) == 0
        assert await cached(router, b) == 0
        assert await cached(router, b, cache_salt="mine") == 96


async def test_a_group_that_agrees_shares_and_nobody_else(tmp_path: Path) -> None:
    async with fake_worker() as worker, tenanted(tmp_path, worker.target) as router:
        one, two = [await add(router.store, name, cache_scope="team") for name in ("one", "two")]
        other = await add(router.store, "team")
        await router.known()
        assert [await cached(router, key) for key in (one, two, other)] == [0, 96, 0]


async def test_blocks_computed_for_another_tenants_prefix_are_those_of_a_cold_run(tmp_path: Path) -> None:
    async with fake_worker() as worker, tenanted(tmp_path, worker.target) as router:
        keys = [await add(router.store, name) for name in ("a", "b", "c")]
        await router.known()
        computed = []
        for key in keys:
            before = len(worker.executor.plans)
            await cached(router, key)
            computed.append(sum(chunk.length for plan in worker.executor.plans[before:] for chunk in plan.chunks))
        assert computed == [computed[0]] * 3
        assert computed[0] >= len(PROMPT)
