"""How much of other people's bodies a server holds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from router.edge.http.body import AT_ONCE, FREE, Bodies
from shared.errors import RequestTooLarge, Unavailable

LIMIT = 2 * FREE


async def chunks(size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, 1_000):
        yield b"x" * min(1_000, size - start)


async def test_a_body_is_read_up_to_its_limit() -> None:
    bodies = Bodies(limit=LIMIT)
    async with bodies.read(chunks(LIMIT)) as body:
        assert len(body) == LIMIT
    with pytest.raises(RequestTooLarge):
        async with bodies.read(chunks(LIMIT + 1)):
            pass


async def test_large_bodies_wait_for_room_small_ones_do_not_and_all_room_comes_back() -> None:
    bodies = Bodies(limit=LIMIT)
    for _ in range(2):
        async with AsyncExitStack() as held:
            for _ in range(2 * AT_ONCE):  # half of each counts
                await held.enter_async_context(bodies.read(chunks(LIMIT)))
            with pytest.raises(Unavailable):
                await held.enter_async_context(bodies.read(chunks(LIMIT)))
            async with bodies.read(chunks(FREE)) as small:
                assert len(small) == FREE
    for _ in range(3 * AT_ONCE):
        with pytest.raises(RequestTooLarge):
            async with bodies.read(chunks(LIMIT + 1)):
                pass
    async with bodies.read(chunks(LIMIT)) as body:
        assert len(body) == LIMIT
