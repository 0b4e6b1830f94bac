"""Fills a step: decodes first, then what is left of prefills, then whoever is admitted."""

from collections import Counter

from shared.hashing import BLOCK_SIZE
from worker.scheduler.admission import Admission, Bar
from worker.scheduler.builder import StepBuilder
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.fairness import Accounts
from worker.scheduler.lifecycle import Lifecycle
from worker.scheduler.preemption import TenantShare, victim
from worker.scheduler.residents import Residents
from worker.sequence import Account, Phase, SequenceState


class Planner:
    """Gives each sequence some of what it has pending, under the builder's budget."""

    def __init__(
        self,
        *,
        config: SchedulerConfig,
        residents: Residents,
        lifecycle: Lifecycle,
        accounts: Accounts,
        admission: Admission,
    ) -> None:
        self._config = config
        self._residents = residents
        self._lifecycle = lifecycle
        self._accounts = accounts
        self._admission = admission
        self._share = TenantShare(config, residents.cache.num_blocks, accounts)

    def fill(self, builder: StepBuilder, now: float) -> None:
        """Plan one step. Where all that it could have computed was preempted for someone who waits, that one is admitted at once."""
        self._admission.place_adapters(now)
        while True:
            preempted = self._lifecycle.preemptions
            self._fill(builder, now)
            if not builder.empty or self._lifecycle.preemptions == preempted:
                return

    def _fill(self, builder: StepBuilder, now: float) -> None:
        """Who is preempted because blocks ran out makes way for the others, not for someone new."""
        preempted = self._lifecycle.preemptions
        decodes = [seq for seq in self._residents.running if seq.pending == 1]
        if decodes:
            self._keep_shares(decodes, now)
            self._make_blocks_suffice(decodes, now)
            self._decode(decodes, builder)
        builder.guard_from_here(several=self._accounts.several)
        admit = self._lifecycle.preemptions == preempted
        prefills = [seq for seq in self._residents.running if seq.pending > 1]
        if prefills:
            self._prefill(prefills, builder, now, admit=admit)
        elif admit:
            self._admission.run(builder, now, crowded=False)

    def _keep_shares(self, decodes: list[SequenceState], now: float) -> None:
        """One of several tenants does not grow beyond its share: its own newest goes instead, unless that is its only one."""
        if not self._accounts.several:
            return
        for account, count in Counter(seq.request.account for seq in decodes).items():
            if account.holder.blocks + count > self._share.blocks:  # else it could not, whatever each needs
                self._shrink(account, decodes, now)

    def _shrink(self, account: Account, decodes: list[SequenceState], now: float) -> None:
        own = [seq for seq in self._residents.running if seq.request.account is account]
        while len(own) > 1:
            needed = self._needed([seq for seq in decodes if seq.request.account is account])
            if not needed or account.holder.blocks + needed <= self._share.blocks:
                return
            newest = victim(own, self._config.max_preemptions)
            self._drop(newest, decodes, now)
            own.remove(newest)

    def _make_blocks_suffice(self, decodes: list[SequenceState], now: float) -> None:
        """Preempt until what becomes available, if only when the steps in flight have retired, is enough for all decodes."""
        cache = self._residents.cache
        while decodes:
            there = cache.available + cache.soon
            if there >= len(decodes) or there >= self._needed(decodes):
                return
            self._drop(victim(self._residents.running, self._config.max_preemptions), decodes, now)

    def _drop(self, seq: SequenceState, decodes: list[SequenceState], now: float) -> None:
        self._lifecycle.preempt(seq, now)
        decodes[:] = [other for other in decodes if other.phase is Phase.RUNNING]

    def _needed(self, decodes: list[SequenceState]) -> int:
        """Blocks that one more position of each takes: a new one, or a copy for all sharers of a block but the last to write."""
        cache, needed = self._residents.cache, 0
        left: dict[int, int] = {}  # shared block -> sharers that have not diverged by then
        for seq in decodes:
            assert seq.table is not None
            entry = seq.scheduled // BLOCK_SIZE
            sharers = cache.sharers(seq.table, entry)
            if sharers > 1:
                block = seq.table.blocks[entry]
                left[block] = left.get(block, sharers) - 1
                needed += left[block] > 0
            else:
                needed += sharers == 0
        return needed

    def _decode(self, decodes: list[SequenceState], builder: StepBuilder) -> None:
        """One position each. Where the budget is too small for all, those go first that have waited longest."""
        others = self._admission.possible or any(seq.pending > 1 for seq in self._residents.running)
        floor = min(self._config.prefill_floor, self._config.step_tokens // 2) if others else 0
        room = builder.budget - floor
        if len(decodes) > room:
            decodes.sort(key=lambda seq: seq.last_step)
        for seq in decodes[:room]:
            if builder.has_room(seq):
                builder.add(seq, 1)

    def _prefill(self, prefills: list[SequenceState], builder: StepBuilder, now: float, *, admit: bool) -> None:
        """Prefills take turns by what their tenants have had, those of one tenant by age; who waits goes before those of tenants that
        have had more. The first is sure of what completes it, or of half of what there is room for. The rest is for those that it
        completes, shortest first, and for admission, which is sure of one position; what they leave goes by turns. So a long prompt
        neither waits for ever nor makes short ones wait for its end."""
        turns = sorted(prefills, key=_served)
        if admit and self._accounts.several:
            self._admission.run(builder, now, crowded=False, bar=_bar(turns))
        door = builder.hold(0, 1 if admit and self._admission.possible and builder.budget > 1 else 0)
        first = turns[0]
        room = builder.room_for(first)
        sure = builder.hold(first.scheduled, room if room == first.pending else room - room // 2)
        self._complete(sorted(turns[1:], key=lambda seq: (_served(seq), seq.pending)), builder)
        builder.release(door)
        if admit:
            self._admission.run(builder, now, crowded=True)
        builder.release(sure)
        for seq in turns:
            if seq.last_step == builder.step or seq.phase is not Phase.RUNNING:  # it was served, or preempted just now
                continue
            room = builder.room_for(seq)
            if not room:
                return
            builder.add(seq, room)

    @staticmethod
    def _complete(prefills: list[SequenceState], builder: StepBuilder) -> None:
        """As many as there is room for, in their order."""
        for seq in prefills:
            if builder.room_for(seq) < seq.pending:
                return
            builder.add(seq, seq.pending)


def _served(seq: SequenceState) -> float:
    return seq.request.account.served


def _bar(prefills: list[SequenceState]) -> Bar:
    return Bar(priority=min(seq.request.priority for seq in prefills), served=min(map(_served, prefills)))
