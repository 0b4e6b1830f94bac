"""Case C16: an abort gives slot and blocks back within one step, in whatever phase it comes."""

from collections.abc import Callable

import pytest

from shared.types import AbortReason, FinishReason
from tests.unit.scheduler.rig import Key, Rig

LONG = [(3 * i) % 48 for i in range(60)]


def _queued(rig: Rig) -> list[Key]:
    rig.submit([9] * 5, max_tokens=100)
    rig.step()
    return rig.submit(LONG)


def _mid_prefill(rig: Rig) -> list[Key]:
    keys = rig.submit(LONG)
    rig.step()
    assert not rig.tokens[keys[0]]
    return keys


def _decode(rig: Rig) -> list[Key]:
    keys = rig.submit(LONG, max_tokens=50)
    while len(rig.tokens[keys[0]]) < 3:
        rig.step()
    return keys


def _choices_mid_prefill(rig: Rig) -> list[Key]:
    keys = rig.submit(LONG, n=3)
    rig.step()
    assert not any(rig.tokens[key] for key in keys)
    return keys


def _choices_forking(rig: Rig) -> list[Key]:
    """At depth 1 with their first tokens in flight."""
    keys = rig.submit(LONG, n=3, max_tokens=50)
    while not rig.executor.plans or len(rig.executor.plans[-1].samples) < 3:
        rig.step()
    return keys


def _choices_decoding(rig: Rig) -> list[Key]:
    keys = rig.submit(LONG, n=3, max_tokens=50)
    while len(rig.tokens[keys[0]]) < 2:
        rig.step()
    return keys


def _preempted(rig: Rig) -> list[Key]:
    keys = _decode(rig)
    (running,) = rig.scheduler._residents.running
    rig.scheduler._lifecycle.preempt(running, rig.now)
    return keys


PHASES: list[Callable[[Rig], list[Key]]] = [
    _queued,
    _mid_prefill,
    _decode,
    _choices_mid_prefill,
    _choices_forking,
    _choices_decoding,
    _preempted,
]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("reason", list(AbortReason))
def test_c16_an_abort_frees_within_a_step(phase: Callable[[Rig], list[Key]], depth: int, reason: AbortReason) -> None:
    rig = Rig(depth=depth, step_tokens=32, max_running=3 if phase is not _queued else 1)
    keys = phase(rig)
    others = [key for key in rig.requests if key not in keys]
    rig.abort(keys, reason)
    wanted = {"client": FinishReason.ABORTED, "stopped": FinishReason.STOP, "deadline": FinishReason.DEADLINE}
    assert {rig.finished[key].reason for key in keys} == {wanted[reason.value]}
    if rig.pending:
        rig.retire()  # the one step that was in flight
    if not others:
        rig.assert_whole()
    rig.run()
    rig.assert_as_alone(others)
    rig.assert_whole()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("phase", [_choices_mid_prefill, _choices_forking, _choices_decoding])
@pytest.mark.parametrize("gone", [[0], [1], [0, 1], [2, 0]])
def test_c16_choices_that_remain_are_as_alone(phase: Callable[[Rig], list[Key]], depth: int, gone: list[int]) -> None:
    rig = Rig(depth=depth, step_tokens=32)
    keys = phase(rig)
    rig.abort([keys[index] for index in gone])
    rig.run()
    rig.assert_as_alone([key for index, key in enumerate(keys) if index not in gone])
    rig.assert_whole()


def test_c16_who_waits_gets_the_place_of_an_aborted_one_in_the_next_step() -> None:
    rig = Rig(max_running=1)
    first = rig.submit(LONG, max_tokens=100)
    rig.step()
    second = rig.submit([1, 2, 3])
    rig.step()
    assert not rig.tokens[second[0]]
    rig.abort(first)
    rig.step()
    assert rig.tokens[second[0]]


def test_the_heir_of_an_aborted_leader_computes_again_what_was_in_flight_and_failed() -> None:
    """The leader's second piece is in flight when it is aborted, and fails without having been computed."""
    rig = Rig(depth=1, step_tokens=16)
    keys = rig.submit(LONG, n=2)
    rig.step()
    lost = rig.scheduler.schedule(rig.now)
    assert lost is not None
    assert lost.chunks[0].start == 16
    rig.retire()
    rig.abort(keys[:1])
    rig.take(rig.scheduler.fail(lost, "the device hiccuped", rig.now))
    assert keys[1] not in rig.finished
    rig.run()
    rig.assert_as_alone(keys[1:])
    rig.assert_whole()


def test_an_abort_of_an_unknown_handle_is_passed_over() -> None:
    rig = Rig()
    keys = rig.submit([1, 2])
    rig.abort([(1, 999), (7, keys[0][1])])
    rig.run()
    rig.assert_as_alone(keys)
    rig.abort(keys)
    rig.assert_as_alone(keys)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_dropped_stream_is_gone_silently_and_others_stay(depth: int) -> None:
    rig = Rig(depth=depth, step_tokens=32)
    rig.submit(LONG, n=3, stream=2)
    keys = rig.submit(LONG, stream=1)
    rig.submit([1, 2], stream=2)
    rig.step()
    rig.step()
    rig.drop_stream(2)
    rig.run()
    rig.assert_as_alone(keys)
    assert all(key[0] == 1 for key in rig.finished)
    rig.assert_whole()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_deadline_ends_what_waits_what_prefills_and_what_decodes(depth: int) -> None:
    rig = Rig(depth=depth, max_running=2, step_tokens=16)
    decoding = rig.submit([1, 2], max_tokens=100, remaining_ms=500)
    rig.step()
    prefilling = rig.submit([7] * 200, remaining_ms=500)
    rig.step()
    waiting = rig.submit([1, 2], remaining_ms=500)
    later = rig.submit([3, 4], remaining_ms=100_000)
    rig.step()
    assert not rig.finished
    rig.step(seconds=0.6)
    for key in decoding + prefilling + waiting:
        assert rig.finished[key].reason is FinishReason.DEADLINE
    rig.run()
    rig.assert_as_alone(later)
    rig.assert_whole()


def test_a_deadline_that_has_passed_on_arrival_ends_at_once() -> None:
    rig = Rig()
    (key,) = rig.submit([1, 2], remaining_ms=0)
    assert rig.finished[key].reason is FinishReason.DEADLINE
    assert rig.scheduler.schedule(rig.now) is None
