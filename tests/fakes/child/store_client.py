"""A router's use of the store and nothing else, as a process that a test may kill: store_client.py PATH NAME START SPEED SECONDS ZERO.

Its clock was START when the machine's was ZERO, and runs SPEED times as fast: it is the same in all processes. Each line that it tells is
what it has seen committed: ["granted", id], ["abandoned", id] or ["settled", id, tokens].
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from router.tenancy.records import Limits
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import Granted, Renewal, Settlement, Wanted

LIMITS = Limits(requests_per_minute=60, output_tokens_per_minute=2_000)
ASKED = 100  # output tokens


def told(*words: Any) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def one(store: SqliteStore, charge_id: str, draw: random.Random) -> None:
    """A request's life; a refused one is a moment's rest."""
    wanted = Wanted(
        charge_id=charge_id, tenant="acme", key="main", model="tiny", adapter="", limits=LIMITS, prompt_tokens=1, output_tokens=ASKED
    )  # fmt: skip
    if not isinstance(await store.reserve(wanted), Granted):
        await asyncio.sleep(0.01)
        return
    told("granted", charge_id)
    made = 0
    for _ in range(draw.randrange(4)):
        await asyncio.sleep(0.005)
        made += draw.randrange(ASKED // 4)
        await store.renew([Renewal(charge_id=charge_id, output_tokens=made)])
    if not made and draw.random() < 0.3:
        await store.abandon(charge_id)
        told("abandoned", charge_id)
        return
    end = Settlement(
        charge_id=charge_id, prompt_tokens=1, cached_tokens=0, output_tokens=made, finish="stop", worker="w1"
    )
    if await store.settle(end):
        told("settled", charge_id, made)


async def main() -> None:
    """Until the time is up, or a kill."""
    path, name = Path(sys.argv[1]), sys.argv[2]
    start, speed, seconds, zero = map(float, sys.argv[3:])

    def clock() -> float:
        return start + (time.monotonic() - zero) * speed

    store = SqliteStore(path, clock=clock)
    draw, end, number = random.Random(name), time.monotonic() + seconds, 0

    async def lane(lane_number: int) -> None:
        nonlocal number
        while time.monotonic() < end:
            number += 1
            await one(store, f"{name}-{lane_number}-{number}", draw)
            await store.sweep()

    await asyncio.gather(*(lane(i) for i in range(4)))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
