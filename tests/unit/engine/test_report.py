"""Changes one after the other are told as one, and mean the same."""

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.report import NetChange
from worker.events import KvChange

HASHES = [bytes([number]) * 16 for number in range(6)]


@given(st.lists(st.sets(st.sampled_from(HASHES))), st.sets(st.sampled_from(HASHES)), st.integers(1, 4))
def test_the_net_change_leads_to_the_same_view(states, start, limit):
    net, before = NetChange(), set(start)
    for after in states:
        net.add(KvChange(added=tuple(after - before), removed=tuple(before - after)))
        before = after
    view = set(start)
    assert len(net) == len(before ^ view)
    while net:
        change = net.take(limit)
        assert 0 < len(change.added) + len(change.removed) <= limit
        assert not set(change.added) & view
        assert set(change.removed) <= view
        view = (view | set(change.added)) - set(change.removed)
    assert view == before


def test_what_came_and_went_is_not_told():
    net = NetChange()
    net.add(KvChange(added=(HASHES[0],)))
    net.add(KvChange(removed=(HASHES[0],)))
    assert net.take() == KvChange()
