"""A tenant's limit of resident adapters, from its client's side."""

import asyncio
from functools import partial
from pathlib import Path

from router.tenancy.records import Scope
from tests.fakes import adapters as fakes
from tests.fakes.engine import fake_worker
from tests.fakes.scripted_worker import until
from tests.fakes.tenancy import INFER, add
from tests.fakes.tenanted import tenanted


async def test_a_request_for_one_adapter_too_many_is_429_and_names_the_limit(tmp_path: Path) -> None:
    root = tmp_path / "adapters"
    for seed, name in enumerate(("one", "two")):
        fakes.write(root / "acme" / name, seed=seed)
    parts = partial(fakes.parts, slots=2, directory=root)
    async with fake_worker(adapters=parts) as worker, tenanted(tmp_path, worker.target) as router:
        key = await add(router.store, "acme", resident_adapters=1)
        await router.known()
        worker.gate.hold()
        running = asyncio.create_task(router.post(key, model="one"))
        await until(lambda: worker.gate.waiting, "the first request to run")
        refused = await router.post(key, model="two")
        worker.gate.open()
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "the limit of 1 resident adapters is reached" in refused.json()["error"]["message"]
        assert (await running).status_code == 200
        assert (await router.post(key, model="two")).status_code == 200


async def test_a_load_of_one_adapter_too_many_is_429_and_no_worker_has_it(tmp_path: Path) -> None:
    root = tmp_path / "adapters"
    for seed, name in enumerate(("one", "two")):
        fakes.write(root / "acme" / name, seed=seed)
    parts = partial(fakes.parts, slots=2, directory=root)
    info = {"max_adapters": 2}
    async with fake_worker(adapters=parts, info=info) as worker, tenanted(tmp_path, worker.target) as router:
        key = await add(router.store, "acme", scopes=INFER | {Scope.ADAPTERS}, resident_adapters=1)
        await router.known()
        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
        first = await router.post(key, load, lora_name="one")
        assert first.status_code == 200, first.text
        refused = await router.post(key, load, lora_name="two")
        assert refused.status_code == 429
        assert "the limit of 1 resident adapters is reached" in refused.json()["error"]["message"]
        assert [record.name for record in (await router.store.snapshot()).adapters] == ["one"]
        assert (await router.post(key, model="one")).status_code == 200
        assert (await router.post(key, model="two")).status_code == 429
        assert (await router.post(key, unload, lora_name="one")).status_code == 200
        assert (await router.post(key, load, lora_name="two")).status_code == 200
