"""KV for half of what runs (case C20): work goes on nearly as fast as where nothing is ever preempted, and no one is preempted for ever."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scheduler.rig import Rig

BLOCK = 16
SHARE = 0.8  # of the throughput of a run without preemption, at least
MOST_PREEMPTIONS = 4  # of a request
RECOMPUTED = 1.7  # times the positions that a run without preemption computes, at most

Work = list[tuple[int, int]]  # prompt and output tokens


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`computed` are positions; `preemptions` counts requests by how often they were preempted."""

    steps: int
    computed: int
    preemptions: Counter[int]


def blocks_of(request: tuple[int, int]) -> int:
    return -(-sum(request) // BLOCK)


def outcome(work: Work, *, blocks: int, running: int, depth: int, **changes: float) -> Outcome:
    """All requests at once, to their end; each gets the tokens that it would have had alone."""
    rig = Rig(
        num_blocks=blocks,
        max_running=running,
        depth=depth,
        check=False,
        max_waiting=200,
        max_waiting_per_tenant=200,
        **changes,
    )
    keys = []
    for number, (prompt, output) in enumerate(work):
        draw = random.Random(number)
        keys += rig.submit([draw.randrange(48) for _ in range(prompt)], max_tokens=output)
    steps = 0
    while rig.step():
        steps += 1
    rig.assert_as_alone(keys)
    rig.assert_whole()
    computed = sum(chunk.length for plan in rig.executor.plans for chunk in plan.chunks)
    return Outcome(steps=steps, computed=computed, preemptions=Counter(rig.finished[key].preemptions for key in keys))


def compared(work: Work, running: int, depth: int) -> tuple[Outcome, Outcome]:
    """Over blocks for half of what `running` requests come to: with as many slots as always fit, and with `running`."""
    largest = sorted(map(blocks_of, work), reverse=True)
    blocks = max(sum(largest[:running]) // 2, largest[0])
    fits = max(count for count in range(1, running + 1) if sum(largest[:count]) <= blocks)
    calm = outcome(work, blocks=blocks, running=fits, depth=depth, watermark=0.0)
    assert set(calm.preemptions) == {0}
    return calm, outcome(work, blocks=blocks, running=running, depth=depth, watermark=0.0)


REQUEST = st.tuples(st.integers(1, 80), st.integers(17, 120))  # outputs that grow by a block at least


@settings(max_examples=30, deadline=None)
@given(data=st.data(), running=st.integers(4, 14), depth=st.integers(0, 1), alike=st.booleans())
def test_c20_half_the_kv_gives_four_fifths_of_the_throughput(
    data: st.DataObject, running: int, depth: int, alike: bool
) -> None:
    count = 3 * running
    work = [data.draw(REQUEST)] * count if alike else data.draw(st.lists(REQUEST, min_size=count, max_size=count))
    calm, crowded = compared(work, running, depth)
    assert crowded.steps * SHARE <= calm.steps
    assert crowded.computed <= RECOMPUTED * calm.computed
    assert max(crowded.preemptions) <= MOST_PREEMPTIONS


@pytest.mark.parametrize("depth", [0, 1])
def test_c20_who_was_preempted_once_is_hardly_ever_preempted_again(depth: int) -> None:
    draw = random.Random(1)
    work = [(draw.randint(4, 60), draw.randint(10, 120)) for _ in range(96)]
    _, crowded = compared(work, 24, depth)
    preempted = sum(count for times, count in crowded.preemptions.items() if times)
    assert preempted > 10, "nothing was under pressure"
    assert crowded.preemptions[1] >= 0.9 * preempted


def test_newcomers_do_not_take_the_place_of_a_preempted_request_that_waits_for_room_to_grow() -> None:
    """Three of two blocks each over seven: with one preempted, three are free, and it wants its two and one for each that runs."""
    rig = Rig(num_blocks=7, max_running=4)
    keys = [rig.submit([number] * 20, max_tokens=8)[0] for number in range(3)]
    while not all(rig.tokens[key] for key in keys):
        rig.step()
    newest = max(rig.scheduler._residents.running, key=lambda seq: seq.age_key)
    rig.scheduler._lifecycle.preempt(newest, rig.now)
    late = rig.submit([9], max_tokens=2)[0]
    told = len(rig.tokens[keys[2]])
    while not rig.tokens[late]:
        assert rig.step()
    assert len(rig.tokens[keys[2]]) > told, "the late one needs a single block, and yet it was not first"
    rig.run()
    rig.assert_as_alone([*keys, late])
