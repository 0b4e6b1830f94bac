"""Public prefixes: what the operator registered is shared between tenants, and nothing else of a prompt is."""

from pathlib import Path
from typing import Any

from router.tenancy.records import PrefixRecord
from tests.fakes.engine import fake_worker
from tests.fakes.tenancy import add
from tests.fakes.tenanted import Tenanted, tenanted

SYSTEM = "You answer as a clerk of the town library would, in whole sentences, and never guess what you do not know."
TEXT = "The following is a list of books, one a line, each with its author and the year of its first edition.\n"


async def keys_of(router: Tenanted, *names: str, **fields: Any) -> list[str]:
    keys = [await add(router.store, name, **fields) for name in names]
    await router.known()
    return keys


async def register(router: Tenanted, **fields: Any) -> None:
    await router.store.put_prefix(PrefixRecord(**({"name": "clerk"} | fields)), actor="test")
    await router.known()


async def cached(router: Tenanted, key: str, prompt: object, **body: object) -> int:
    answer = await router.post(key, prompt=prompt, **body)
    assert answer.status_code == 200, answer.text
    told: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told


async def chat(router: Tenanted, key: str, system: str, user: str) -> int:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    answer = await router.post(key, "/v1/chat/completions", messages=messages)
    assert answer.status_code == 200, answer.text
    told: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told


async def length(router: Tenanted, key: str, text: str) -> int:
    answer = await router.post(key, "/tokenize", prompt=text)
    tokens: list[int] = answer.json()["tokens"]
    return len(tokens)


async def test_a_registered_text_is_shared_between_tenants_and_what_follows_it_is_not(tmp_path: Path) -> None:
    async with fake_worker(blocks=256) as worker, tenanted(tmp_path, worker.target) as router:
        a, b = await keys_of(router, "a", "b")
        await register(router, text=TEXT)
        own = (
            TEXT
            + "Middlemarch, by George Eliot, of 1871. Emma, by Jane Austen, of 1815. Ulysses, by James Joyce, of 1922."
        )
        assert await cached(router, a, own) == 0
        mine = await cached(router, a, own)
        shared = await cached(router, b, own)
        assert 0 < shared < mine
        assert shared % 16 == 0
        assert await length(router, a, TEXT) - 17 <= shared <= await length(router, a, TEXT)
        assert await cached(router, b, own) == mine


async def test_a_registered_system_message_is_shared_whatever_the_users_say(tmp_path: Path) -> None:
    async with fake_worker(blocks=256) as worker, tenanted(tmp_path, worker.target) as router:
        a, b = await keys_of(router, "a", "b")
        await register(router, system=SYSTEM)
        assert await chat(router, a, SYSTEM, "Where is the atlas?") == 0
        shared = await chat(router, b, SYSTEM, "Which book is the oldest that you have?")
        assert shared >= 32
        assert await chat(router, b, "Please: " + SYSTEM, "Where is the atlas?") == 0


async def test_a_prompt_that_begins_with_some_of_a_public_prefix_alone_shares_none_of_it(tmp_path: Path) -> None:
    async with fake_worker(blocks=256) as worker, tenanted(tmp_path, worker.target) as router:
        a, b = await keys_of(router, "a", "b")
        await register(router, text=TEXT)
        half = TEXT[: len(TEXT) // 2] + " and of nothing else that anybody has ever written down in this town."
        assert await cached(router, a, half) == 0
        assert await cached(router, b, half) == 0
        assert await cached(router, b, TEXT + "Emma") == 0


async def test_what_one_tenant_appends_to_a_short_public_prefix_is_not_what_another_finds_of_a_longer_one(
    tmp_path: Path,
) -> None:
    async with fake_worker(blocks=256) as worker, tenanted(tmp_path, worker.target) as router:
        a, b = await keys_of(router, "a", "b")
        await register(router, name="short", text=TEXT)
        longer = TEXT + "Middlemarch, by George Eliot, of 1871. Emma, by Jane Austen, of 1815. Ulysses, by James Joyce."
        await cached(router, a, longer + " And so on.")
        await register(router, name="long", text=longer)
        short = await length(router, a, TEXT) // 16 * 16
        assert await cached(router, b, longer + " No more.") == short
        assert await cached(router, a, longer + " Whatever.") > short


async def test_a_clients_salt_counts_from_behind_a_public_prefix_too(tmp_path: Path) -> None:
    async with fake_worker(blocks=256) as worker, tenanted(tmp_path, worker.target) as router:
        (a,) = await keys_of(router, "a")
        await register(router, text=TEXT)
        own = (
            TEXT
            + "Middlemarch, by George Eliot, of 1871. Emma, by Jane Austen, of 1815. Ulysses, by James Joyce, of 1922."
        )
        assert await cached(router, a, own, cache_salt="one") == 0
        mine = await cached(router, a, own, cache_salt="one")
        assert 0 < await cached(router, a, own, cache_salt="two") < mine


async def test_a_prefix_is_for_the_models_that_it_names_and_until_it_is_deleted(tmp_path: Path) -> None:
    async with fake_worker(blocks=256) as worker, tenanted(tmp_path, worker.target) as router:
        a, b, c = await keys_of(router, "a", "b", "c")
        await register(router, text=TEXT, models=("other-*",))
        assert [await cached(router, key, TEXT + "Emma") for key in (a, b)] == [0, 0]
        await register(router, text=TEXT, models=("tin?",))
        assert await cached(router, a, TEXT + "Emma") == 0
        assert await cached(router, b, TEXT + "Emma") > 0
        await router.store.delete_prefix("clerk", actor="test")
        await router.known()
        assert await cached(router, c, TEXT + "Emma") == 0
