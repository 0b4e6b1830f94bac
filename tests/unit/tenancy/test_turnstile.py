"""Turns by tenant, however many come at once and whoever leaves."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tenancy.turnstile import Turnstile


async def settle() -> None:
    """Lets every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_another_tenant_passes_a_flood() -> None:
    turnstile, order, go = Turnstile(4), [], asyncio.Event()

    async def one(tenant: str) -> None:
        async with turnstile.turn(tenant):
            order.append(tenant)
            await go.wait()

    tasks = [asyncio.create_task(one("flood")) for _ in range(100)]
    await settle()
    assert order == ["flood"] * 3
    tasks.append(asyncio.create_task(one("modest")))
    await settle()
    assert order == ["flood"] * 3 + ["modest"]
    tasks.append(asyncio.create_task(one("modest")))
    go.set()
    await asyncio.gather(*tasks)
    assert "modest" in order[4:7]
    turnstile.check_integrity()


async def test_whoever_leaves_gives_its_turn_to_the_next() -> None:
    turnstile, entered = Turnstile(1), []

    async def one(name: str) -> None:
        async with turnstile.turn("a"):
            entered.append(name)
            await asyncio.Event().wait()

    first, second, third = (asyncio.create_task(one(name)) for name in ("1", "2", "3"))
    await settle()
    second.cancel()
    await settle()
    first.cancel()
    await settle()
    assert entered == ["1", "3"]
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    turnstile.check_integrity()


async def test_a_turn_that_was_given_to_who_is_cancelled_is_not_lost() -> None:
    turnstile = Turnstile(1)
    held = turnstile.turn("a")
    await held.__aenter__()
    waiter = asyncio.create_task(turnstile.turn("b").__aenter__())
    await settle()
    await held.__aexit__(None, None, None)  # lets the waiter in
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    turnstile.check_integrity()
    async with asyncio.timeout(5), turnstile.turn("c"):
        pass


async def test_who_leaves_in_the_moment_in_which_its_turn_comes_takes_nobody_along() -> None:
    turnstile = Turnstile(1)
    held = turnstile.turn("a")
    await held.__aenter__()
    leaving, staying = (asyncio.create_task(turnstile.turn("b").__aenter__()) for _ in range(2))
    await settle()
    leaving.cancel()  # its task does not know yet
    await held.__aexit__(None, None, None)
    async with asyncio.timeout(5):
        await staying
    assert leaving.cancelled()
    turnstile.check_integrity()


async def test_of_two_places_one_tenant_has_one() -> None:
    turnstile = Turnstile(2)
    async with turnstile.turn("a"):
        waiter = asyncio.create_task(turnstile.turn("a").__aenter__())
        await settle()
        assert (turnstile.waiting("a"), waiter.done()) == (1, False)
        async with asyncio.timeout(5), turnstile.turn("b"):
            pass
        waiter.cancel()


@given(
    st.lists(
        st.tuples(st.sampled_from(("come a", "come b", "come c", "end", "cancel")), st.integers(0, 30)), max_size=60
    )
)
def test_no_place_is_free_while_one_waits_for_it(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        turnstile, tasks = Turnstile(4), []
        ends: dict[asyncio.Task[None], asyncio.Event] = {}

        async def one(tenant: str, end: asyncio.Event) -> None:
            async with turnstile.turn(tenant):
                await end.wait()

        for what, which in steps:
            if what.startswith("come"):
                end = asyncio.Event()
                task = asyncio.create_task(one(what[-1], end))
                ends[task] = end
                tasks.append(task)
            elif tasks:
                task = tasks[which % len(tasks)]
                task.cancel() if what == "cancel" else ends[task].set()
            await settle()
            turnstile.check_integrity()
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        turnstile.check_integrity()

    asyncio.run(run())
