"""Who is preempted when blocks run out, and how often."""

from collections import Counter

import pytest

from shared.types import Tenant
from tests.unit.scheduler.rig import Key, Rig
from worker.scheduler.preemption import victim
from worker.sequence import SequenceState


def running(rig: Rig, *tenants: Tenant) -> list[SequenceState]:
    """One running sequence of each tenant, oldest first."""
    for number, tenant in enumerate(tenants):
        rig.submit([number], tenant=tenant, max_tokens=50)
    rig.step()
    found = sorted(rig.scheduler._residents.running, key=lambda seq: seq.age_key)
    assert len(found) == len(tenants)
    return found


A, B, LOW = Tenant(id="a"), Tenant(id="b"), Tenant(id="low", top_class=3)


def test_the_lowest_class_goes_before_the_most_served_and_that_before_the_newest() -> None:
    low, served, old, new = seqs = running(Rig(), LOW, B, A, A)
    served.request.account.served += 1000
    assert victim(seqs, 4) is low
    assert victim([served, old, new], 4) is served
    assert victim([old, new], 4) is new


def test_who_was_preempted_often_is_spared_while_anyone_else_was_not() -> None:
    low, old, new = seqs = running(Rig(), LOW, A, A)
    low.preemptions = new.preemptions = 2
    assert victim(seqs, 2) is old
    old.preemptions = 2
    assert victim(seqs, 2) is low
    assert victim([old, new], 2) is new, "then age decides, and not who was served"


@pytest.mark.parametrize("depth", [0, 1])
def test_preemptions_of_a_request_are_bounded_under_pressure(depth: int) -> None:
    """Twice as much is wanted as there is."""
    rig = Rig(num_blocks=24, max_running=12, depth=depth, max_preemptions=2, watermark=0.05)
    keys: list[Key] = [rig.submit([i] * 17, max_tokens=50)[0] for i in range(24)]
    rig.run()
    rig.assert_as_alone(keys)
    counts = Counter(rig.finished[key].preemptions for key in keys)
    assert sum(counts) > 0, "nothing was under pressure"
    assert max(counts) <= 4
    assert counts[0] + counts[1] >= 0.8 * len(keys)
    assert rig.scheduler.stats(rig.now).preemptions == sum(count * times for count, times in counts.items())


def test_the_oldest_of_equals_is_never_preempted() -> None:
    rig = Rig(num_blocks=8, max_running=6)
    keys = [rig.submit([i] * 17, max_tokens=60)[0] for i in range(6)]
    rig.run()
    assert rig.finished[keys[0]].preemptions == 0
    assert rig.finished[keys[-1]].preemptions > 0
    assert next(iter(rig.finished)) == keys[0]


def test_c21_a_preempted_request_keeps_its_place_before_newer_ones_of_its_tenant() -> None:
    rig = Rig(max_running=2)
    first, second = rig.submit([1], max_tokens=60), rig.submit([2], max_tokens=60)
    rig.step()
    later = rig.submit([3], max_tokens=60)
    seqs = sorted(rig.scheduler._residents.running, key=lambda seq: seq.age_key)
    for seq in seqs:  # the older first: the newer must not come to stand before it
        rig.scheduler._lifecycle.preempt(seq, rig.now)
    rig.step()
    assert rig.scheduler.stats(rig.now).running == 2
    assert [seq.choice.handle for seq in rig.scheduler._residents.running] == [first[0][1], second[0][1]]
    assert not rig.tokens[later[0]]


def test_choices_that_wait_for_a_preempted_leader_go_and_come_back_with_it() -> None:
    rig = Rig(step_tokens=16)
    keys = rig.submit([5] * 60, n=3)
    rig.step()
    (leader,) = rig.scheduler._residents.running
    rig.scheduler._lifecycle.preempt(leader, rig.now)
    rig.check()
    assert rig.scheduler.stats(rig.now).waiting == 3
    rig.run()
    rig.assert_as_alone(keys)


def test_one_step_ahead_blocks_that_come_free_with_it_are_waited_for() -> None:
    """One of two is aborted in flight: the other needs a block in the next step, and gets the aborted one's a step later."""
    rig = Rig(num_blocks=2, depth=1)
    keys = rig.submit([1] * 14, max_tokens=10)
    gone = rig.submit([2] * 3, max_tokens=10)
    for _ in range(3):
        rig.step()
    rig.abort(gone)
    assert rig.scheduler.stats(rig.now).free_blocks == 0
    rig.run()
    assert rig.finished[keys[0]].preemptions == 0
    rig.assert_as_alone(keys)


def test_c21_requests_of_one_class_do_not_preempt_each_other_to_and_fro() -> None:
    rig = Rig(max_running=2, tenant_share=1.0)
    tenants = [Tenant(id=name, top_class=1) for name in ("one", "two")]
    keys = [rig.submit([number, 2], tenant=tenants[number % 2], max_tokens=20)[0] for number in range(8)]
    rig.run()
    assert rig.scheduler.stats(rig.now).preemptions == 0
    rig.assert_as_alone(keys)
