"""Adapters share slots: who waits for one is passed over, comes to it in bounded time, and nothing of one is taken for another's."""

import pytest

from shared.types import FinishReason, RejectCode, Tenant
from tests.unit.scheduler.rig import Key, Rig

A, B, C, D = (bytes([number]) * 32 for number in (1, 2, 3, 4))
PROMPT = tuple(range(20))
DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def rig(**changes: object) -> Rig:
    return Rig(**({"max_adapters": 2, "num_blocks": 200} | changes))  # type: ignore[arg-type]


def started(rig: Rig, keys: list[Key]) -> bool:
    return all(rig.tokens[key] for key in keys)


def until_started(rig: Rig, keys: list[Key], most: int = 2_000) -> float:
    """Seconds of the rig's clock till each has its first token. Loads take no time."""
    before = rig.now
    for _ in range(most):
        while rig.device.orders:
            rig.load()
        if started(rig, keys):
            return rig.now - before
        rig.step()
    raise AssertionError("never started")


@DEPTHS
def test_tokens_are_of_the_adapter_that_was_asked_for(depth):
    r = rig(depth=depth, max_adapters=3)
    keys = [key for adapter in (A, b"", B, C, A) for key in r.submit(PROMPT, adapter=adapter, n=2)]
    r.run()
    r.assert_as_alone(keys)
    assert len({tuple(r.tokens[key]) for key in keys}) == 8  # of two choices each, A twice
    r.assert_whole()


@DEPTHS
def test_who_waits_for_an_adapter_is_passed_over(depth):
    r = rig(depth=depth)
    (waits,) = r.submit(PROMPT, adapter=A)
    others = [*r.submit(PROMPT), *r.submit(PROMPT, adapter=B)]
    assert r.step()
    r.load(1)
    while r.step() and not started(r, others):
        pass
    assert not r.tokens[waits]
    r.load()
    r.run()
    r.assert_as_alone([waits, *others])


def test_a_load_begins_when_a_request_is_queued_though_nothing_can_be_admitted():
    r = rig(max_running=1)
    r.submit(PROMPT, max_tokens=50)
    r.step()
    r.submit(PROMPT, adapter=A)
    r.step()
    assert r.device.orders[0][1] == A


@DEPTHS
def test_c8_a_step_never_names_more_adapters_than_there_are_slots(depth):
    r = rig(depth=depth, max_running=16, num_blocks=12)
    keys = [key for adapter in (A, B, C, D, b"") * 4 for key in r.submit(PROMPT, adapter=adapter, max_tokens=30)]
    for key in keys[3::7]:
        r.step()
        r.abort([key])
    r.run()
    assert r.executor.most_adapters == 2
    assert r.scheduler.stats(r.now).preemptions > 0
    r.assert_as_alone([key for key in keys if r.finished[key].reason is FinishReason.LENGTH])
    r.assert_whole()


@DEPTHS
@pytest.mark.parametrize("max_running", [4, 64])
def test_c10_one_behind_31_of_another_adapter_starts_within_its_bounded_wait(depth, max_running):
    r = rig(depth=depth, max_adapters=1, max_running=max_running, num_blocks=2_000, max_waiting=1_000, check=False)
    hot = [key for _ in range(31) for key in r.submit(PROMPT, adapter=A, max_tokens=200)]
    until_started(r, hot[:1])
    behind = r.submit(PROMPT, adapter=B)
    begun = r.now
    while not started(r, behind):
        while r.device.orders:
            r.load()
        if r.now > begun + 0.1 and len(r.scheduler._queue) < 31:
            hot += r.submit(PROMPT, adapter=A, max_tokens=200)  # traffic of the other does not end
        r.step()
        assert r.now - begun < 2 * r.config.adapter_wait_s + 0.2
    r.run()
    r.assert_as_alone([*hot, *behind])


def test_c10_all_of_many_adapters_come_to_the_only_slot_in_turn():
    r = rig(max_adapters=1, max_running=8, num_blocks=2_000, max_waiting=1_000, check=False)
    digests = [bytes([number]) * 32 for number in range(1, 7)]
    keys = [key for digest in digests for _ in range(6) for key in r.submit(PROMPT, adapter=digest, max_tokens=230)]
    first = [keys[6 * number] for number in range(6)]
    wait = until_started(r, first)
    assert wait < 6 * (r.config.adapter_wait_s + r.config.adapter_grace_s + r.config.adapter_slice_s)
    r.run(20_000)
    r.assert_as_alone(keys)


def test_adapters_that_many_wait_for_keep_their_slots_while_the_others_take_turns_on_half_of_them():
    r = rig(
        max_adapters=4,
        max_running=32,
        num_blocks=2_000,
        max_waiting=1_000,
        max_waiting_per_tenant=1_000,
        check=False,
    )
    hot = {
        digest: [key for _ in range(30) for key in r.submit(PROMPT, adapter=digest, max_tokens=230)]
        for digest in (A, B)
    }
    until_started(r, [keys[0] for keys in hot.values()])
    digests = [bytes([number]) * 32 for number in range(10, 20)]
    others = [key for digest in digests for key in r.submit(PROMPT, adapter=digest, max_tokens=230)]
    while not started(r, others):
        while r.device.orders:
            r.load()
        r.step()
        there = {one.digest for one in r.scheduler.stats(r.now).adapters if one.ready}
        asked = {digest for digest, keys in hot.items() if sum(key not in r.finished for key in keys) > 1}
        assert asked <= there
    r.run(20_000)
    r.assert_as_alone([*hot[A], *hot[B], *others])


def test_what_runs_on_a_reserved_slot_may_go_on_the_longer_the_more_turns_are_waited_for():
    waits = []
    for others in (1, 6):
        r = rig(max_adapters=1, max_running=8, adapter_slice_s=0.0, adapter_wait_s=0.2, adapter_grace_s=0.8)
        r.submit(PROMPT, adapter=A, max_tokens=230)
        until_started(r, [*r.tokens])
        keys = [r.submit(PROMPT, adapter=bytes([9 + number]) * 32, max_tokens=230)[0] for number in range(others)]
        waits.append(until_started(r, keys[:1]))
    assert waits[0] < 0.6 < waits[1] < 1.3


def test_a_tenants_adapters_take_turns():
    r = rig(max_running=1)
    hot = [key for _ in range(20) for key in r.submit(PROMPT, adapter=A)]
    (other,) = r.submit(PROMPT, adapter=B)
    until_started(r, [other])
    assert sum(key in r.finished for key in hot) <= 2


def test_an_adapter_of_many_takes_no_more_of_the_service_than_its_tenants_weight_allows():
    r = rig(max_running=1, max_waiting=200)
    a, b = Tenant(id="a"), Tenant(id="b")
    hot = [key for _ in range(40) for key in r.submit(PROMPT, adapter=A, tenant=a)]
    cold = [key for digest in (B, C) for key in r.submit(PROMPT, adapter=digest, tenant=b)]
    until_started(r, cold)
    assert sum(key in r.finished for key in hot) <= 6


@pytest.mark.parametrize("before", [False, True])
def test_those_who_wait_for_what_cannot_be_had_are_told_and_nobody_else_is(before):
    """`before`: one of them has had its adapter and was preempted for another's."""
    r = rig(max_adapters=1, adapter_wait_s=0.0, adapter_slice_s=0.0)
    (base,) = r.submit(PROMPT, max_tokens=60)
    (has_run,) = r.submit(PROMPT, adapter=A, max_tokens=60)
    if before:
        until_started(r, [has_run])
        r.submit(PROMPT, adapter=B, max_tokens=60)
        while not any(digest == A for _, digest in r.device.orders):
            while r.device.orders and r.device.orders[0][1] == B:
                r.load()
            r.step()
    else:
        r.step()
    (fresh,) = r.submit(PROMPT, adapter=A)
    r.fail_load()
    assert r.rejected[fresh].code is RejectCode.ADAPTER_INVALID
    if before:
        assert (r.finished[has_run].reason, r.finished[has_run].message) == (FinishReason.ERROR, "broken")
    else:
        assert r.rejected[has_run].message == "broken"
    r.run()
    r.assert_as_alone([base])
    r.assert_whole()


@DEPTHS
def test_c1_a_forgotten_adapter_leaves_its_slot_after_its_last_sequence(depth):
    r = rig(depth=depth)
    keys = [key for _ in range(6) for key in r.submit(PROMPT, adapter=A, max_tokens=40)]
    until_started(r, keys[:1])
    r.take(r.scheduler.forget_adapter(A))
    while len(r.finished) < 6:
        assert not r.device.cleared
        r.step()
    r.run()
    r.assert_as_alone(keys)
    assert r.device.cleared == [0]
    assert not any(one.ready for one in r.scheduler.stats(r.now).adapters)


def test_c1_a_forgotten_adapter_that_nothing_uses_leaves_at_once():
    r = rig()
    r.submit(PROMPT, adapter=A)
    r.run()
    assert [one.ready for one in r.scheduler.stats(r.now).adapters] == [True]
    r.take(r.scheduler.forget_adapter(A))
    assert (r.device.cleared, r.device.contents) == ([0], {0: None})


def test_c3_blocks_of_one_version_are_never_taken_for_anothers():
    r = rig()
    for adapter in (A, B, b""):
        (cold,) = r.submit(PROMPT, adapter=adapter)
        r.run()
        (warm,) = r.submit(PROMPT, adapter=adapter)
        r.run()
        r.assert_as_alone([cold, warm])
        assert (r.finished[cold].cached_tokens, r.finished[warm].cached_tokens) == (0, 16)


def test_the_slot_that_went_unused_the_longest_is_given_away_and_a_pinned_one_never():
    r = rig(max_adapters=3)
    for adapter in (A, B, C, A):
        r.submit(PROMPT, adapter=adapter)
        r.run()
    r.scheduler.pin_adapter(B, True)
    r.submit(PROMPT, adapter=D)
    r.run()
    there = {one.digest for one in r.scheduler.stats(r.now).adapters if one.ready}
    assert there == {A, B, D}


def test_a_worker_without_slots_refuses_adapters():
    r = rig(max_adapters=0)
    (key,) = r.submit(PROMPT, adapter=A)
    assert r.rejected[key].code is RejectCode.ADAPTER_VERSION_UNAVAILABLE


def test_counts_of_each_adapter_are_told():
    r = rig(max_running=2)
    keys = [key for _ in range(3) for key in r.submit(PROMPT, adapter=A, max_tokens=20)]
    until_started(r, keys[:2])
    (one,) = r.scheduler.stats(r.now).adapters
    assert (one.digest, one.running, one.waiting, one.ready) == (A, 2, 1, True)
    r.run()
    (one,) = r.scheduler.stats(r.now).adapters
    assert (one.running, one.waiting) == (0, 0)
    assert 0 < one.idle_since <= r.now
