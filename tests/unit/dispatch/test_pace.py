"""Rounds: at once while the loop has time, a pause as long as the last round took where it has not."""

import asyncio
import time

from router.dispatch.pace import Pace


class Teller:
    """Tells how often it was settled; `takes` seconds of the loop each time."""

    def __init__(self, takes: float = 0.0) -> None:
        self.takes = takes
        self.told = 0

    def settle(self) -> None:
        time.sleep(self.takes)
        self.told += 1


async def told(teller: Teller, times: int) -> None:
    async with asyncio.timeout(30):
        while teller.told < times:
            await asyncio.sleep(0)


async def test_what_is_held_is_told_once_a_round() -> None:
    pace, teller, other = Pace(0.02), Teller(), Teller()
    for _ in range(3):
        pace.hold(teller)
    pace.hold(other)
    assert teller.told == 0
    await told(other, 1)
    assert teller.told == 1
    pace.hold(teller)
    await told(teller, 2)
    assert other.told == 1


async def test_after_a_round_that_took_long_others_wait_to_go_together() -> None:
    pace, slow, quick = Pace(30.0), Teller(0.2), Teller()
    pace.hold(slow)
    await told(slow, 1)
    for _ in range(20):  # within the pause
        pace.hold(quick)
        await asyncio.sleep(0)
    assert quick.told == 0
    await told(quick, 1)


async def test_what_is_held_while_a_round_is_told_is_not_forgotten() -> None:
    pace, last = Pace(0.02), Teller()

    class Nested(Teller):
        def settle(self) -> None:
            super().settle()
            pace.hold(last)

    pace.hold(Nested())
    await told(last, 1)


async def test_no_pause_is_longer_than_it_may_be() -> None:
    pace, slow = Pace(0.001), Teller(0.2)
    pace.hold(slow)
    await told(slow, 1)
    loop = asyncio.get_running_loop()
    seen: list[float] = []
    later = loop.call_later
    loop.call_later = lambda delay, *rest, **more: seen.append(delay) or later(delay, *rest, **more)  # type: ignore[method-assign]
    pace.hold(slow)
    await told(slow, 2)
    assert all(delay <= 0.001 for delay in seen)
