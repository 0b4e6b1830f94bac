"""A stack with tenants, on the demo model, and sessions that speak for them."""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from octavo.bench import load
from octavo.bench.workload import FIRST_TOKEN, LAST_TOKEN, Item
from octavo.demo import pull_demo
from router.tenancy.keys import new_key
from router.tenancy.records import Scope, TenantRecord
from router.tenancy.sqlite.store import SqliteStore
from tests.e2e.stack import RunningStack
from worker.sources.cache import cache_directory

KNOWN_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class TenantStack:
    """A running one. `keys` by tenant's name; `store` is where its database lies."""

    stack: RunningStack
    keys: Mapping[str, str]
    store: Path
    model: str

    def session(self, tenant: str) -> aiohttp.ClientSession:
        """Speaks for this tenant, over as many connections as there are requests."""
        return speaker(f"http://{self.stack.http}", self.keys[tenant])


def speaker(url: str, key: str) -> aiohttp.ClientSession:
    """A session with this key."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {key}"}
    return aiohttp.ClientSession(base_url=url, connector=connector, timeout=timeout, headers=headers)


async def fill(path: Path, tenants: Sequence[TenantRecord]) -> dict[str, str]:
    """These tenants, each with a key that is returned."""
    store = SqliteStore(path)
    try:
        await store.put_tenants(tenants, actor="accept")
        keys = {
            tenant.name: new_key(tenant=tenant.name, name="main", scopes=frozenset({Scope.INFER}), now=time.time())
            for tenant in tenants
        }
        for key in keys.values():
            await store.add_key(key.record, actor="accept")
        return {name: key.text for name, key in keys.items()}
    finally:
        await store.aclose()


async def _known(stack: TenantStack) -> None:
    """Returns once the router knows its tenants: until then it is open, and everyone is one tenant."""
    async with asyncio.timeout(KNOWN_SECONDS), aiohttp.ClientSession(f"http://{stack.stack.http}") as session:
        while (await session.get("/v1/models")).status != 401:
            await asyncio.sleep(0.05)


@contextmanager
def tenant_stack(tenants: Sequence[TenantRecord], worker_arguments: Sequence[str] = ()) -> Iterator[TenantStack]:
    """The demo model with one worker, for these tenants alone."""
    model = pull_demo(cache_directory(), lambda _: None)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "octavo.db"
        arguments = ("--port", "0", "--store", str(path))
        stack = RunningStack(model, workers=1, worker_arguments=worker_arguments, arguments=arguments)
        try:
            keys = asyncio.run(fill(path, tenants))
            running = TenantStack(stack=stack, keys=keys, store=path, model=stack.model)
            asyncio.run(_known(running))
            yield running
        finally:
            stack.stop()


def items(seed: int, prompt_tokens: int, output_tokens: int) -> Iterator[Item]:
    """Requests without end whose prompts share nothing."""
    draw = random.Random(seed)
    while True:
        prompt = tuple(draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(prompt_tokens))
        yield Item(prompt=prompt, output_tokens=output_tokens)


async def ttft(session: aiohttp.ClientSession, model: str, item: Item) -> float:
    """Seconds to the first piece of one request's answer."""
    timeline = await load.request(session, item, model)
    return timeline.pieces[0] - timeline.start
