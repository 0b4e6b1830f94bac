"""Placement is a pure function: of load, turns, and a hash."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.placement import POLICIES
from router.placement.prompt import prompt_marks
from router.placement.view import Share, Want, WorkerView
from shared.hashing import Chain

least_loaded = POLICIES["least_loaded"]
CHAIN = Chain(seed=b"s")
WANT = Want(key=b"k", prompt_tokens=10, choices=1)
COUNTS = st.integers(0, 20)


def view(worker_id: str, **changes: Any) -> WorkerView:
    idle = WorkerView(worker_id=worker_id, running=0, waiting=0, pending=Share(0), max_running=8, dispatched=0)
    return replace(idle, **changes)


VIEWS = st.lists(
    st.builds(
        WorkerView,
        worker_id=st.text("abcdef", min_size=1, max_size=4),
        running=COUNTS,
        waiting=COUNTS,
        pending=st.builds(Share, COUNTS),
        max_running=st.integers(1, 64),
        dispatched=COUNTS,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda worker: worker.worker_id,
)


@given(VIEWS, st.randoms(use_true_random=False), st.binary(min_size=1, max_size=16))
def test_the_order_of_the_workers_does_not_matter(views, random, key):
    shuffled = list(views)
    random.shuffle(shuffled)
    want = replace(WANT, key=key)
    assert least_loaded(views, want) == least_loaded(shuffled, want)


def test_load_is_a_share_of_what_a_worker_runs():
    assert (
        least_loaded([view("small", running=2, max_running=4), view("big", running=3, max_running=64)], WANT) == "big"
    )


def test_own_dispatches_that_no_report_covers_are_load():
    assert least_loaded([view("a", pending=Share(1)), view("b", dispatched=5)], WANT) == "b"


def test_router_case_1_cold_prompts_at_concurrency_1_spread_evenly():
    workers = {name: view(name) for name in "abcd"}
    for number in range(102):
        chosen = least_loaded(list(workers.values()), replace(WANT, key=prompt_marks(CHAIN, [number]).key))
        workers[chosen] = replace(workers[chosen], dispatched=workers[chosen].dispatched + 1)
    counts = [worker.dispatched for worker in workers.values()]
    assert max(counts) - min(counts) <= 1


def test_router_case_3_two_prompts_of_equal_length_have_different_keys():
    assert prompt_marks(CHAIN, [1, 2, 3]).key != prompt_marks(CHAIN, [1, 2, 4]).key
    assert prompt_marks(CHAIN, range(16)).key == prompt_marks(CHAIN, list(range(20))).key
