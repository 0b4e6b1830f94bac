"""Who waits, in the order in which they are offered a place.

Each tenant has a lane per class and adapter. In a lane, what was preempted comes first, by age, then what is new, by arrival. Lanes take
turns: the highest class first, then the tenant that has had least, then its adapter that has, then the oldest head. A head rises one
class for each `starve_s` it has waited.
"""

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice

from worker.sequence import Account, Adapter, Phase, SequenceState

LOOKAHEAD = 8  # entries of a lane that are offered a place when its head finds none


class Verdict(Enum):
    """What came of an offer."""

    ADMITTED = auto()
    PASSED = auto()  # it finds no place; others may
    STOP = auto()  # nobody else is to be offered one in this step


@dataclass(kw_only=True, slots=True, eq=False)
class Entry:
    """Sequences that are admitted together, the one that runs their prefill first.

    `uncached` (tokens to compute), `pairs` ((query, key) pairs of their attention) and `cost` (virtual tokens still to be charged) are
    estimates made when it came.
    """

    sequences: list[SequenceState]
    since: float  # seconds
    uncached: int
    cost: float
    again: bool = False  # it was preempted
    pairs: int = 0

    @property
    def leader(self) -> SequenceState:
        """The sequence that runs the prefill."""
        return self.sequences[0]

    @property
    def priority(self) -> int:
        """Its class."""
        return self.leader.request.priority

    @property
    def account(self) -> Account:
        """Its tenant's."""
        return self.leader.request.account

    @property
    def lane(self) -> tuple[str, int, bytes]:
        """Names where it waits."""
        return (self.account.tenant_id, self.priority, self.leader.request.spec.adapter_digest)


Key = tuple[int, float, float, tuple[int, int]]


def _lacks_slot(adapter: Adapter | None) -> bool:
    return adapter is not None and adapter.slot is None


def _age(entry: Entry) -> tuple[int, int]:
    return entry.leader.age_key


@dataclass(kw_only=True, slots=True, eq=False)
class _Lane:
    again: list[Entry] = field(default_factory=list)  # by age
    fresh: OrderedDict[Entry, None] = field(default_factory=OrderedDict)

    def __iter__(self) -> Iterator[Entry]:
        yield from self.again
        yield from self.fresh

    def head(self) -> Entry:
        return next(iter(self))


class WaitingQueue:
    """Entries by tenant and class. All operations but `offer` are O(1), or O(preempted entries of the lane)."""

    def __init__(self, *, starve_s: float) -> None:
        self._starve_s = starve_s
        self._lanes: dict[tuple[str, int, bytes], _Lane] = {}  # none empty
        self._entries: dict[SequenceState, Entry] = {}
        self._uncached = 0
        self._pairs = 0

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._entries)

    @property
    def uncached_tokens(self) -> int:
        """Tokens that those who wait are expected to need computed."""
        return self._uncached

    @property
    def uncached_pairs(self) -> int:
        """(query, key) pairs of their attention."""
        return self._pairs

    def push(self, entry: Entry) -> None:
        """A new one at the end of its lane; a preempted one before all new ones, where its age puts it."""
        lane = self._lanes.setdefault(entry.lane, _Lane())
        if entry.again:
            insort(lane.again, entry, key=_age)
        else:
            lane.fresh[entry] = None
        for seq in entry.sequences:
            seq.phase = Phase.WAITING
            self._entries[seq] = entry
        self._uncached += entry.uncached
        self._pairs += entry.pairs

    def remove(self, entry: Entry) -> None:
        """It waits no more."""
        for seq in entry.sequences:
            del self._entries[seq]
        self._unlink(entry, entry.lane)

    def drop(self, seq: SequenceState) -> None:
        """One sequence waits no more; the others of its entry still do."""
        entry = self._entries[seq]
        if len(entry.sequences) == 1:
            self.remove(entry)
            return
        del self._entries[seq]
        entry.sequences.remove(seq)

    def _unlink(self, entry: Entry, key: tuple[str, int, bytes]) -> None:
        lane = self._lanes[key]
        if entry.again:
            lane.again.remove(entry)
        else:
            del lane.fresh[entry]
        if not lane.again and not lane.fresh:
            del self._lanes[key]
        self._uncached -= entry.uncached
        self._pairs -= entry.pairs

    def offer(self, place: Callable[[Entry], Verdict], now: float, *, lookahead: bool) -> None:
        """Offer places in order until no one can be placed. `place` removes what it admits, and may push preempted entries."""
        order = [(self._key(lane, now), number, lane) for number, lane in enumerate(self._lanes.values())]
        heapq.heapify(order)
        while order:
            offered, number, lane = order[0]
            key = self._key(lane, now)
            if key > offered:  # its tenant was served since
                heapq.heapreplace(order, (key, number, lane))
                continue
            heapq.heappop(order)
            verdict = self._offer_lane(lane, place, LOOKAHEAD if lookahead else 1)
            if verdict is Verdict.STOP:
                return
            if verdict is Verdict.ADMITTED and (lane.again or lane.fresh):
                heapq.heappush(order, (self._key(lane, now), number, lane))

    def wanting(self, now: float) -> list[tuple[Adapter, float]]:
        """Adapters that are in no slot and not on their way to one, in the order of their lanes, with when the head of that came."""
        wanting = [lane for lane in self._lanes.values() if _lacks_slot(lane.head().leader.request.adapter)]
        found: dict[Adapter, float] = {}
        for head in (lane.head() for lane in sorted(wanting, key=lambda lane: self._key(lane, now))):
            adapter = head.leader.request.adapter
            assert adapter is not None
            found[adapter] = min(head.since, found.get(adapter, head.since))
        return list(found.items())

    @staticmethod
    def _offer_lane(lane: _Lane, place: Callable[[Entry], Verdict], most: int) -> Verdict:
        for entry in list(islice(lane, most)):
            verdict = place(entry)
            if verdict is not Verdict.PASSED:
                return verdict
        return Verdict.PASSED

    def _key(self, lane: _Lane, now: float) -> Key:
        head = lane.head()
        risen = int((now - head.since) / self._starve_s) if self._starve_s else 0
        return (max(0, head.priority - risen), head.account.served, head.leader.request.share.served, _age(head))

    def check_integrity(self, waiting: list[SequenceState]) -> None:
        """`waiting` are the live sequences that wait. Raises AssertionError."""
        entries = [entry for lane in self._lanes.values() for entry in lane]
        listed = [seq for entry in entries for seq in entry.sequences]
        assert len(listed) == len(set(listed)), "queue: a sequence waits twice"
        assert set(listed) == set(waiting) == set(self._entries), "queue: not exactly those wait who should"
        assert all(lane.again or lane.fresh for lane in self._lanes.values()), "queue: an empty lane"
        assert all(entry in self._lanes[entry.lane] for entry in entries), "queue: lane"
        assert self._uncached == sum(entry.uncached for entry in entries), "queue: the sum of uncached tokens is off"
        assert self._pairs == sum(entry.pairs for entry in entries), "queue: the sum of their pairs is off"
        for lane in self._lanes.values():
            assert lane.again == sorted(lane.again, key=_age), "queue: preempted entries are not in order"
