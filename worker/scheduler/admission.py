"""Who gets a place in a step: all blocks of the prompt, and a slot for each choice, or none of it."""

from dataclasses import dataclass
from typing import NamedTuple

from shared.hashing import BLOCK_SIZE
from worker.kvcache.cache import Hits, blocks_for
from worker.scheduler.builder import StepBuilder
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.fairness import PROMPT_COST, Accounts
from worker.scheduler.lifecycle import Lifecycle
from worker.scheduler.preemption import RoomMaker, Shortage, TenantShare
from worker.scheduler.queue import Entry, Verdict, WaitingQueue
from worker.scheduler.residents import Residents

ROOM_ATTEMPTS = 4  # entries a step for which victims are sought: each costs a pass over all that run


@dataclass(frozen=True, kw_only=True, slots=True)
class _Demand:
    """`taken` blocks become unavailable by admission: new ones, and hits that no one uses now. `copies` follow when the choices fork."""

    hits: Hits
    taken: int
    copies: int


def _copies(sequences: int, tokens: int) -> int:
    """Blocks that forks will need for what is partial at the prompt's end."""
    return sequences - 1 if tokens % BLOCK_SIZE else 0


class Bar(NamedTuple):
    """Of unfinished prefills, the highest class and the least that a tenant has had: who waits below it goes before them."""

    priority: int
    served: float

    def lets(self, entry: Entry) -> bool:
        """Whether the entry goes first."""
        return entry.priority <= self.priority and entry.account.served < self.served


class Admission:
    """Places waiting entries. In `run` the running sequences have had their turn already."""

    def __init__(
        self,
        *,
        config: SchedulerConfig,
        queue: WaitingQueue,
        residents: Residents,
        lifecycle: Lifecycle,
        accounts: Accounts,
    ) -> None:
        self._config = config
        self._queue = queue
        self._residents = residents
        self._lifecycle = lifecycle
        self._watermark = -int(-config.watermark * residents.cache.num_blocks // 1)
        self._share = TenantShare(config, residents.cache.num_blocks, accounts)
        self._rooms = RoomMaker(config=config, residents=residents, accounts=accounts, share=self._share)

    @property
    def possible(self) -> bool:
        """Whether anyone waits and a slot is free."""
        return len(self._queue) > 0 and self._residents.slots.free > 0

    def run(self, builder: StepBuilder, now: float, *, crowded: bool, bar: Bar | None = None) -> None:
        """Admit as many as there is room and budget for, and schedule what the budget allows of them.

        `crowded`: an older prefill is unfinished. Then who is admitted gets what completes its own prefill, or no more than a first piece.
        `bar`: only those below it, as far as there is room for them without preempting anyone.
        """
        if not len(self._queue) or builder.budget <= 0:
            return
        offers = _Offers(self, builder, now, promised=self._promised(), crowded=crowded, bar=bar)
        self._queue.offer(offers.place, now, lookahead=self._residents.slots.free > 0)

    def _promised(self) -> int:
        """Blocks that running sequences will need for copies of blocks which they share."""
        cache, promised = self._residents.cache, 0
        for seq in self._residents.running:
            if seq.children:
                promised += _copies(len(seq.children) + 1, len(seq.tokens))
            elif seq.table is not None and cache.sharers(seq.table, seq.scheduled // BLOCK_SIZE) > 1:
                promised += 1
        return promised

    def demand(self, entry: Entry) -> _Demand:
        """What the entry takes."""
        leader = entry.leader
        length = len(leader.tokens)
        readable = leader.readable if self._config.prefix_cache else 0
        hits = self._residents.cache.probe(leader.hash_blocks(readable)[:readable], length)
        taken = blocks_for(length) - len(hits.blocks) + hits.idle
        return _Demand(hits=hits, taken=taken, copies=_copies(len(entry.sequences), length))

    def adapter_there(self, entry: Entry) -> bool:
        """Whether what it runs on is ready on the device, and not to make way for another."""
        adapter = entry.leader.request.adapter
        return adapter is None or self._residents.adapters.usable(adapter)

    def place_adapters(self, now: float) -> None:
        """Give device slots to the adapters of those who wait; preempt who has had one too long while others want it."""
        adapters = self._residents.adapters
        adapters.plan(self._queue.wanting(now), now)
        for adapter in adapters.overdue(now):
            for seq in [seq for seq in self._residents.running if seq.request.adapter is adapter]:
                if seq.preemptions < self._config.max_preemptions:
                    self._lifecycle.preempt(seq, now)
        adapters.settle()

    def allowed(self, entry: Entry, demand: _Demand) -> bool:
        """Whether its tenant's share allows it."""
        blocks = demand.taken + demand.copies
        return self._share.allows(entry.account, slots=len(entry.sequences), blocks=blocks)

    def shortage(self, entry: Entry, demand: _Demand, promised: int) -> Shortage:
        """What it lacks now. Room to grow is kept only while anything runs."""
        return Shortage(
            slots=len(entry.sequences) - self._residents.slots.free,
            blocks=demand.taken + demand.copies + promised + self._headroom(entry) - self._residents.cache.available,
        )

    def _headroom(self, entry: Entry) -> int:
        """Blocks to leave to those that run: the watermark; one for each of them where the entry was preempted before, or it would come
        back only to be preempted again."""
        running = len(self._residents.running)
        return 0 if not running else max(self._watermark, running if entry.leader.preemptions else 0)

    def admit(self, entry: Entry, demand: _Demand, builder: StepBuilder, *, crowded: bool) -> None:
        """Give it all it needs, and schedule it."""
        self._queue.remove(entry)
        self._residents.admit(entry.sequences, demand.hits)
        self._account(entry, cached=len(demand.hits.blocks) * BLOCK_SIZE)
        pending, room = entry.leader.pending, builder.room_for(entry.leader)
        piece = min(room, self._config.prefill_floor) if crowded else room
        builder.add(entry.leader, pending if pending == room else max(1, piece))

    def _account(self, entry: Entry, *, cached: int) -> None:
        """At its first admission a request is charged its prompt; a replay is charged to no one."""
        leader = entry.leader
        if leader.cached_tokens is not None:
            return
        for seq in entry.sequences:
            seq.cached_tokens = min(cached, seq.prompt_len)
        self._lifecycle.placed(leader.request, cold=2 * cached < leader.prompt_len)
        if not leader.request.spec.resumed:
            leader.request.charge(PROMPT_COST * (len(leader.tokens) - cached))

    def held(self, entry: Entry, shortage: Shortage) -> bool:
        """Whether it was preempted before, and lacks no more than the headroom. Whoever came after it must not take its place meanwhile."""
        return entry.leader.preemptions > 0 and shortage.slots <= 0 and shortage.blocks <= self._headroom(entry)

    def starving(self, entry: Entry, now: float) -> bool:
        """Whether no other may be admitted past it any more."""
        return now - entry.since >= self._config.starve_s

    def make_room(self, entry: Entry, shortage: Shortage, now: float) -> bool:
        """Preempt for it, if that is allowed and suffices."""
        victims = self._rooms.victims(entry, shortage, now)
        for seq in victims:
            self._lifecycle.preempt(seq, now)
        return bool(victims)

    def soon(self, shortage: Shortage) -> bool:
        """Whether what is short comes when the steps in flight retire."""
        return shortage.slots <= self._residents.slots.soon and shortage.blocks <= self._residents.cache.soon


class _Offers:
    """One step's offers. `promised` blocks are spoken for. The first to be admitted is, whatever the step's target time."""

    def __init__(
        self,
        admission: Admission,
        builder: StepBuilder,
        now: float,
        *,
        promised: int,
        crowded: bool,
        bar: Bar | None,
    ) -> None:
        self._admission = admission
        self._builder = builder
        self._now = now
        self._promised = promised
        self._crowded = crowded
        self._bar = bar
        self._attempts = ROOM_ATTEMPTS
        self._admitted = False

    def place(self, entry: Entry) -> Verdict:
        """Admit the entry, or say why not."""
        if self._builder.budget <= 0 or (self._admitted and not self._builder.has_place(0)):
            return Verdict.STOP
        if self._bar and not self._bar.lets(entry):
            return Verdict.STOP if self._admission.starving(entry, self._now) else Verdict.PASSED
        if entry.leader.unknown:  # its last token is still in flight
            return Verdict.PASSED
        if not self._admission.adapter_there(entry):
            return Verdict.PASSED
        demand = self._admission.demand(entry)
        if not self._admission.allowed(entry, demand):
            return Verdict.PASSED
        shortage = self._admission.shortage(entry, demand, self._promised)
        if shortage.slots <= 0 and shortage.blocks <= 0:
            if self._admitted and not self._builder.has_place(len(demand.hits.blocks) * BLOCK_SIZE):
                return Verdict.STOP
            self._promised += demand.copies
            self._admitted = True
            self._admission.admit(entry, demand, self._builder, crowded=self._crowded)
            return Verdict.ADMITTED
        return Verdict.STOP if self._bar else self._refuse(entry, shortage)

    def _refuse(self, entry: Entry, shortage: Shortage) -> Verdict:
        if self._admission.soon(shortage):
            return Verdict.STOP
        if self._attempts:
            self._attempts -= 1
            if self._admission.make_room(entry, shortage, self._now):
                return Verdict.STOP
        waits = self._admission.held(entry, shortage) or self._admission.starving(entry, self._now)
        return Verdict.STOP if waits else Verdict.PASSED
