"""Which adapter is in which device slot, and which comes next. Loads nothing itself: it orders, and is told. Imports no torch.

A sequence is admitted when its adapter is ready in a slot, and as long as any of an adapter's sequences has a place the slot stays its
own: a step never names more adapters than there are slots, and none that is not there. A slot that nobody uses goes to whoever waits and
comes first. Where all are in use, whoever has waited `adapter_wait_s` reserves one: its adapter has had it `adapter_slice_s` and gets
nobody admitted any more; what still runs on it after a while (`_grace`) is preempted. So everyone comes to a slot in bounded time, and
nobody loses one that it could not use.

At most half of the slots are reserved at a time, those whose adapters have the fewest sequences: adapters that are asked for most keep
their slots and fill the batch, and the many that are asked for little take turns on the others.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from worker.events import AdapterStats
from worker.scheduler.config import SchedulerConfig
from worker.sequence import Adapter, AdapterSlot, SequenceState

RECENT_S = 60.0  # an adapter without sequences is told of for so long


class SlotLoader(Protocol):
    """Does what is ordered, in order for each slot, beside the steps. No call here waits for anything."""

    def install(self, slot: int, digest: bytes) -> None:
        """Bring the adapter into the slot, which no plan names. The answer is `Scheduler.adapter_loaded` or `adapter_failed`."""

    def clear(self, slot: int) -> None:
        """Give the slot's memory back. Not answered."""


def _stats(one: Adapter) -> AdapterStats:
    return AdapterStats(
        digest=one.digest,
        running=one.residents,
        waiting=one.live - one.residents,
        idle_since=one.idle_since,
        ready=one.slot is not None and one.slot.ready,
    )


class Adapters:
    """The slots. `retired` tells the number of the last step that has retired."""

    def __init__(self, config: SchedulerConfig, loader: SlotLoader | None, retired: Callable[[], int]) -> None:
        self._config = config
        self._loader = loader
        self._retired = retired
        self._slots = [AdapterSlot(number=number) for number in range(config.max_adapters if loader else 0)]
        self._adapters: dict[bytes, Adapter] = {}
        self._late = 0  # adapters that have waited long
        self._uses = 0
        self._told: tuple[AdapterStats, ...] | None = ()  # None: something has changed since
        self.now = 0.0  # the time of the call that is made of the scheduler

    def get(self, digest: bytes) -> Adapter:
        """The one adapter object of this version."""
        if digest not in self._adapters:
            self._adapters[digest] = Adapter(digest=digest, idle_since=self.now)
        return self._adapters[digest]

    # ---- sequences come and go

    def enter(self, adapter: Adapter, sequences: int) -> None:
        """So many more are live."""
        adapter.live += sequences
        self._told = None

    def leave(self, adapter: Adapter) -> None:
        """One of them has ended."""
        adapter.live -= 1
        adapter.idle_since, self._told = self.now, None

    def attach(self, adapter: Adapter) -> None:
        """A sequence of it has got a place."""
        adapter.residents += 1
        self._told = None

    def detach(self, adapter: Adapter, last_step: int) -> None:
        """One has lost its place; `last_step` is the latest plan that names it."""
        slot = adapter.slot
        assert slot is not None
        adapter.residents -= 1
        self._told = None
        self._uses += 1
        slot.until, slot.used = max(slot.until, last_step), self._uses

    def usable(self, adapter: Adapter) -> bool:
        """Whether a sequence of it may be admitted now."""
        slot = adapter.slot
        return slot is not None and slot.ready and slot.reserved is None

    # ---- slots

    @property
    def loading(self) -> bool:
        """Whether any order has not been answered."""
        return any(slot.adapter is not None and not slot.ready for slot in self._slots)

    def plan(self, wanted: Iterable[tuple[Adapter, float]], now: float) -> None:
        """Give slots to those that want one; `wanted` is most urgent first, with when each began to wait."""
        self.settle()
        late: list[tuple[float, Adapter]] = []
        for adapter, since in wanted:
            if adapter.slot is not None:  # one that it had reserved has just become free
                continue
            slot = self._unused()
            if slot is not None:
                self._assign(slot, adapter)
            elif now - since >= self._config.adapter_wait_s:
                late.append((since, adapter))
        self._late = len(late)
        for _, adapter in sorted(late, key=lambda item: item[0]):
            self._reserve(adapter, now)
        self.settle()
        for slot in self._slots:
            slot.offered = slot.ready and slot.reserved is None

    def overdue(self, now: float) -> set[Adapter]:
        """Adapters whose slots others have reserved for so long that their sequences are to go."""
        grace = self._grace
        return {
            slot.adapter
            for slot in self._slots
            if slot.reserved is not None and slot.adapter is not None and now - slot.reserved_at >= grace
        }

    @property
    def _grace(self) -> float:
        """Seconds for which what runs on a reserved slot may go on: the longer, the more turns the others have to wait for anyway. Most of
        it ends by itself then, and nothing is computed twice."""
        turns = -(-self._late // max(1, len(self._slots) // 2))
        wait, most = self._config.adapter_wait_s, self._config.adapter_grace_s
        return max(wait, min(most, turns * wait))

    def settle(self) -> None:
        """Reserved slots that are free go to who reserved them; nobody keeps a reservation who needs it no more."""
        for slot in self._slots:
            heir = slot.reserved
            if heir is None:
                continue
            if not heir.live or heir.slot is not None:
                slot.reserved = None
            elif self._free(slot):
                self._assign(slot, heir)
        self.sweep()

    def sweep(self) -> None:
        """Clear the slots of adapters that no name means and nothing uses; forget what is nowhere."""
        for slot in self._slots:
            adapter = slot.adapter
            if adapter is not None and adapter.forgotten and not adapter.live and self._free(slot):
                self._vacate(slot)
                self._order().clear(slot.number)

    def _free(self, slot: AdapterSlot) -> bool:
        """Whether its content may change now."""
        if slot.adapter is None:
            return True
        return slot.ready and not slot.adapter.residents and slot.until <= self._retired()

    def _unused(self) -> AdapterSlot | None:
        """A slot that is nobody's, or else the one whose adapter has gone unused the longest and is not asked for."""
        free = [slot for slot in self._slots if slot.reserved is None and self._free(slot)]
        spare = [slot for slot in free if slot.adapter is None or not (slot.adapter.live or slot.adapter.pinned)]
        return min(spare, key=lambda slot: (slot.adapter is not None, slot.used), default=None)

    def _reserve(self, adapter: Adapter, now: float) -> None:
        """One of the half of the slots whose adapters have the fewest sequences, waiting ones too; of those that have been what they are
        for long enough, the first."""
        if any(slot.reserved is adapter for slot in self._slots):
            return
        latest = now - self._config.adapter_slice_s
        ranked = sorted(
            (slot.adapter.live, slot.since, slot.number, slot)
            for slot in self._slots
            if slot.adapter is not None and not slot.adapter.pinned
        )
        for *_, slot in ranked[: max(1, len(ranked) // 2)]:
            if slot.ready and slot.reserved is None and slot.since <= latest and slot.offered:
                slot.reserved, slot.reserved_at = adapter, now
                return

    def _assign(self, slot: AdapterSlot, adapter: Adapter) -> None:
        self._vacate(slot)
        slot.adapter, adapter.slot = adapter, slot
        self._order().install(slot.number, adapter.digest)

    def _vacate(self, slot: AdapterSlot) -> None:
        former, slot.adapter, slot.ready, slot.reserved, slot.offered = slot.adapter, None, False, None, False
        if former is not None:
            former.slot, self._told = None, None

    def _order(self) -> SlotLoader:
        assert self._loader is not None
        return self._loader

    # ---- what the loader answers, and orders from outside

    def loaded(self, number: int, now: float) -> None:
        """The slot holds what was ordered."""
        slot = self._slots[number]
        assert slot.adapter is not None
        assert not slot.ready
        self._uses += 1
        slot.ready, slot.since, slot.used = True, now, self._uses
        self._told = None

    def failed(self, number: int) -> Adapter:
        """What was ordered cannot be had: the slot is empty. Returns whose sequences cannot run."""
        slot = self._slots[number]
        adapter = slot.adapter
        assert adapter is not None
        assert not slot.ready
        self._vacate(slot)
        return adapter

    def forget(self, digest: bytes) -> None:
        """No name means it any more."""
        if digest in self._adapters:
            self._adapters[digest].forgotten, self._adapters[digest].pinned = True, False

    def remember(self, digest: bytes) -> None:
        """A name means it again."""
        if digest in self._adapters:
            self._adapters[digest].forgotten = False

    def pin(self, digest: bytes, pinned: bool) -> None:
        """Keep its slot from others when it has one, or not any more."""
        self.get(digest).pinned = pinned

    # ---- what is told

    def stats(self) -> tuple[AdapterStats, ...]:
        """Those with sequences, now or lately, or a slot. The same object until something changes."""
        if self._told is None:
            for digest in [one.digest for one in self._adapters.values() if self._done(one)]:
                del self._adapters[digest]
            self._told = tuple(map(_stats, self._adapters.values()))
        return self._told

    def _done(self, one: Adapter) -> bool:
        return not one.live and one.slot is None and not one.pinned and self.now - one.idle_since > RECENT_S

    def check_integrity(self, live: Iterable[SequenceState]) -> None:
        """`live` are all live sequences. Raises AssertionError naming what does not hold."""
        sequences = [seq for seq in live if seq.request.adapter is not None]
        counts = Counter(seq.request.adapter for seq in sequences)
        places = Counter(seq.request.adapter for seq in sequences if seq.slot >= 0)
        for one in self._adapters.values():
            assert one.live == counts[one], "adapters: live sequences are miscounted"
            assert one.residents == places[one], "adapters: sequences with a place are miscounted"
            assert one.slot is None or one.slot.adapter is one, "adapters: one is in another's slot"
            assert not one.residents or (one.slot is not None and one.slot.ready), (
                "adapters: one runs that is not there"
            )
        assert set(counts) <= set(self._adapters.values()), "adapters: a live one is not known"
        for slot in self._slots:
            assert slot.adapter is None or slot.adapter.slot is slot, "adapters: a slot of two"
            assert slot.adapter is not None or not slot.ready, "adapters: an empty slot is ready"
