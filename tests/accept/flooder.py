"""A client of its own that sends many requests at once: flooder.py URL MODEL COUNT PROMPT OUTPUT, with its key in OCTAVO_API_KEY.

It is a process of its own that runs when nobody else does, so that what it costs to send does not count as what others wait: it would have
its own machine. It tells "up", begins with a line on standard input, and tells how many were answered, refused (429), and failed.
"""

import asyncio
import json
import os
import sys
from collections import Counter

import aiohttp

from octavo.bench import load
from octavo.bench.workload import Item
from tests.accept.tenants import items, speaker


async def _one(session: aiohttp.ClientSession, model: str, item: Item) -> str:
    try:
        await load.request(session, item, model)
    except (load.RequestFailed, aiohttp.ClientError) as error:
        return "refused" if "HTTP 429" in str(error) else "failed"
    return "answered"


async def main(url: str, model: str, count: int, prompt: int, output: int) -> None:
    """All at once, to their ends."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asked = items(99, prompt, output)
    print("up", flush=True)
    sys.stdin.readline()
    async with speaker(url, os.environ["OCTAVO_API_KEY"]) as session:
        ends = Counter(await asyncio.gather(*(_one(session, model, next(asked)) for _ in range(count))))
    sys.stdout.write(json.dumps({end: ends[end] for end in ("answered", "refused", "failed")}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
