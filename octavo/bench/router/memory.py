"""The index's memory under prompts that never come again, and what hashing takes, of a thread and of the event loop beside it."""

import asyncio
import gc
import os
import random
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

from octavo.bench.router.decision import fleet
from router.placement.prompt import prompt_marks
from router.placement.view import Want
from router.text.threads import TextThreads
from shared.hashing import BLOCK_SIZE, chain

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MB, _US, _MS = 1e6, 1e6, 1e3
TICK_S = 0.0005
REPORT_EVERY = 16  # prompts: all workers tell of another load, so that all get some


def resident() -> int:
    """Bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def unique_prompts(
    looks: list[int], *, workers: int = 4, blocks: int = 20_000, tokens: int = 256
) -> list[dict[str, Any]]:
    """Entries of the index and resident megabytes after so many prompts that all differ (`looks`, ascending). Each is placed, begun, told
    of by its worker, which evicts its oldest where it has no room, and ended.
    """
    made, luck, linked = fleet(workers, blocks), random.Random(0), chain(model_revision="1")
    kept: list[deque[bytes]] = [deque() for _ in range(workers)]
    numbers = {id(link): number for number, link in enumerate(made.links)}
    found, began = [], time.perf_counter()
    for count in range(1, looks[-1] + 1):
        marks = prompt_marks(linked, array("I", luck.randbytes(4 * tokens)))
        want = Want(key=marks.key, hashes=marks.hashes, prompt_tokens=tokens, choices=1)
        if not count % REPORT_EVERY:
            made.report(luck, blocks)
        link, judged = made.decide(want)
        made.placing.sent(count, link.member, judged)
        made.placing.begun(count)
        number = numbers[id(link)]
        cache, room = kept[number], blocks // 4
        cache.extend(marks.hashes)
        made.tell(number, marks.hashes, [cache.popleft() for _ in range(len(cache) - room)])
        made.placing.ended(count, [64])
        if count in looks:
            gc.collect()
            took = time.perf_counter() - began
            found.append({"prompts": count, "entries": len(made.index), "rss_mb": resident() / _MB, "seconds": took})
    return found


def hashing(tokens: int, rounds: int) -> dict[str, float]:
    """Microseconds a block of 16 tokens, as the router marks prompts."""
    luck, linked = random.Random(0), chain(model_revision="1")
    prompt = [luck.randrange(1 << 17) for _ in range(tokens)]
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        prompt_marks(linked, prompt)
        took.append(time.perf_counter() - began)
    return {"tokens": tokens, "us_per_block": _US * sorted(took)[rounds // 2] / (tokens // BLOCK_SIZE)}


async def _gaps(until: asyncio.Event) -> list[float]:
    gaps, last = [], time.perf_counter()
    while not until.is_set():
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        gaps.append(now - last - TICK_S)
        last = now
    return gaps


async def _beside(tokens: int, rounds: int) -> list[float]:
    luck, linked, threads, over = random.Random(0), chain(model_revision="1"), TextThreads(), asyncio.Event()
    prompt = [luck.randrange(1 << 17) for _ in range(tokens)]
    watch = asyncio.create_task(_gaps(over))
    for _ in range(rounds):
        await threads.marks(linked, prompt)
        await asyncio.sleep(0.002)
    over.set()
    threads.close()
    return await watch


def loop_gaps(tokens: int, rounds: int) -> dict[str, float]:
    """How much longer than asked for a short sleep on the event loop takes while prompts are hashed, in milliseconds."""
    gaps = sorted(asyncio.run(_beside(tokens, rounds)))
    return {"loop_late_p50_ms": _MS * gaps[len(gaps) // 2], "loop_late_max_ms": _MS * gaps[-1]}
