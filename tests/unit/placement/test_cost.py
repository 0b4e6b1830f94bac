"""The cost in seconds, and what it decides."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement import POLICIES
from router.placement.adapters import adapter_cost, desired_set, to_prefetch
from router.placement.cost import AGAIN, FULL, PRESSURE, base_cost
from router.placement.prompt import prompt_marks
from router.placement.view import ASSUMED_RATE, AdapterUse, Share, Want, WorkerView
from shared.hashing import BLOCK_SIZE, chain

cost = POLICIES["cost"]
WANT = Want(key=b"k", prompt_tokens=1_000, choices=1)
DIGEST = b"d" * 32


def view(worker_id: str, **changes: Any) -> WorkerView:
    idle = WorkerView(
        worker_id=worker_id,
        running=0,
        waiting=0,
        pending=Share(0),
        max_running=8,
        dispatched=0,
        free_blocks=1_000,
        total_blocks=1_000,
        prefill_rate=1_000.0,
    )
    return replace(idle, **changes)


def test_a_cached_prefix_is_worth_what_it_saves_here_and_what_a_copy_would_push_out():
    want = replace(WANT, cached={"a": 960})
    saved = (1.0 + AGAIN) * 960
    assert cost([view("a", uncached=int(0.9 * saved)), view("b")], want) == "a"
    assert cost([view("a", uncached=int(1.1 * saved)), view("b")], want) == "b"


def test_attention_over_what_is_long_counts_as_the_seconds_that_it_takes():
    """The same tokens to compute: behind a long prefix they take longer."""
    few, many = view("a", uncached=2_000, pairs=0, pair_s=1e-6), view("b", uncached=2_000, pairs=3_000_000, pair_s=1e-6)
    assert cost([few, many], WANT) == "a"
    far, near = replace(WANT, prompt_tokens=4_000, cached={"a": 2_000}), view("b", pair_s=1e-6, prefill_rate=1_000.0)
    assert far.pairs("a") == 2_000 * 3_000
    assert far.pairs("b") == 4_000 * 2_000
    assert cost([view("a", pair_s=1e-6, uncached=int(3_900 * (1.0 + AGAIN))), near], far) == "a"
    assert cost([view("a", pair_s=1e-6, uncached=int(5_000 * (1.0 + AGAIN))), near], far) == "b"


NUMBERS = st.integers(0, 100_000)
SECONDS = st.floats(0.0, 1e-3)


@given(st.lists(NUMBERS, min_size=9, max_size=9), st.tuples(SECONDS, SECONDS, SECONDS), st.booleans(), NUMBERS, NUMBERS)
def test_a_price_is_the_sum_that_the_module_tells_of(counts, seconds, measured, tokens, cached):
    running, waiting, uncached, context, pairs, free, *unacked = counts
    pending = Share(unacked[0], unacked[1], unacked[2], 0, unacked[0] * unacked[1])
    pair_s, sequence_s, context_s = seconds
    worker = view(
        "a",
        running=running,
        waiting=waiting,
        uncached=uncached,
        context=context,
        pairs=pairs,
        free_blocks=free,
        total_blocks=200_000,
        pending=pending,
        prefill_rate=700.0 if measured else 0.0,
        pair_s=pair_s,
        sequence_s=sequence_s,
        context_s=context_s,
    )
    want = replace(WANT, prompt_tokens=tokens + 1, cached={"a": min(cached, tokens)}, outputs=3.5)
    own, rate = want.uncached("a"), 700.0 if measured else ASSUMED_RATE
    wait = (uncached + pending.uncached) / rate + pair_s * (pairs + pending.pairs)
    computed = own / rate + pair_s * want.pairs("a")
    step = sequence_s * (running + waiting + pending.choices) + context_s * (context + pending.context)
    used = min(FULL, (200_000 - free + (own + pending.uncached) // BLOCK_SIZE) / 200_000)
    expected = wait + (1 + AGAIN) * computed + 3.5 * step + PRESSURE * used / (1 - used)
    assert base_cost(want)(worker) == pytest.approx(expected, rel=1e-12)


def test_own_dispatches_that_no_report_covers_are_work():
    assert cost([view("a", pending=Share(1, 900)), view("b", cold=5)], WANT) == "b"


def test_router_case_1_cold_prompts_go_round_by_the_workers_own_counts():
    workers = {name: view(name) for name in "abcd"}
    for number in range(102):
        chosen = cost(list(workers.values()), replace(WANT, key=number.to_bytes(4, "little")))
        workers[chosen] = replace(workers[chosen], cold=workers[chosen].cold + 1)
    counts = [worker.cold for worker in workers.values()]
    assert max(counts) - min(counts) <= 1


def test_router_cases_18_and_19_neither_a_salt_nor_an_adapter_shares_a_key_or_a_hash_with_another():
    seeds = [
        chain(model_revision="m"),
        chain(model_revision="m", salt=b"x"),
        chain(model_revision="m", adapter_digest=b"x"),
        chain(model_revision="m", salt=b"y"),
    ]
    marks = [prompt_marks(seed, range(128)) for seed in seeds]
    assert len({mark.key for mark in marks}) == len({mark.hashes for mark in marks}) == 4
    assert prompt_marks(seeds[1], range(128)) == marks[1]


def test_c53_sessions_find_the_same_worker_through_any_router():
    workers = [view(f"w{number}") for number in range(6)]
    for number in range(200):
        want = replace(WANT, session=str(number).encode())
        assert POLICIES["session"](workers, want) == POLICIES["session"](workers[::-1], want)


def test_a_wide_fleet_is_not_narrowed_to_a_few_by_a_common_beginning():
    workers = [view(f"w{number}") for number in range(300)]
    chosen = {cost(workers, replace(WANT, hashes=(b"same" * 4, bytes([number]) * 16))) for number in range(200)}
    assert len(chosen) > 48  # a shortlist by the common beginning would be the same 12 for all


def test_router_case_22_an_idle_resident_adapter_is_preferred():
    idle = {DIGEST: AdapterUse(0, 0, 50.0, True)}
    assert cost([view("a", adapters=idle), view("b")], replace(WANT, adapter=DIGEST)) == "a"


def test_router_case_24_an_empty_worker_can_have_the_first_load():
    workers = [view("a"), view("b")]
    (first,) = desired_set(workers, DIGEST)
    assert to_prefetch(workers, DIGEST) == first
    assert cost(workers, replace(WANT, adapter=DIGEST)) == first
    other = next(worker for worker in workers if worker.worker_id != first)
    assert adapter_cost(other, DIGEST, {first}) > adapter_cost(replace(other, worker_id=first), DIGEST, {first}) > 0
