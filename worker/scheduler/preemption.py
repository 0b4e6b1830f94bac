"""Who loses slot and blocks so that others can go on.

A victim is of the lowest class, then of the most over-served tenant, then the newest. Who was preempted `max_preemptions` times is spared
while anyone else is not; where all were, class and age alone decide, so that the oldest of the highest class always gets through.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from worker.scheduler.config import SchedulerConfig
from worker.scheduler.fairness import Accounts
from worker.scheduler.queue import Entry
from worker.scheduler.residents import Residents
from worker.sequence import Account, SequenceState


def _rank(seq: SequenceState) -> tuple[int, float, tuple[int, int]]:
    return (seq.request.priority, seq.request.account.served, seq.age_key)


def _last_rank(seq: SequenceState) -> tuple[int, tuple[int, int]]:
    return (seq.request.priority, seq.age_key)


def victim(running: Iterable[SequenceState], max_preemptions: int) -> SequenceState:
    """The one to go when blocks run out. `running` must not be empty."""
    every = list(running)
    spared = [seq for seq in every if seq.preemptions < max_preemptions]
    return max(spared, key=_rank) if spared else max(every, key=_last_rank)


class Shortage(NamedTuple):
    """What an entry lacks to be admitted; not positive where it lacks nothing."""

    slots: int
    blocks: int


class TenantShare:
    """What one of several tenants may have. A tenant that has nothing yet may take one entry whatever its size. Who has had more than
    others finds less room than `slots`: what they have needed lately is left to them; but nobody loses what it has for that."""

    def __init__(self, config: SchedulerConfig, num_blocks: int, accounts: Accounts) -> None:
        self._accounts = accounts
        self._max_running, self._reserves = config.max_running, config.tenant_share < 1
        self.slots = max(1, int(config.tenant_share * config.max_running))
        self.blocks = max(1, int(config.tenant_share * num_blocks))

    def allows(self, account: Account, *, slots: int, blocks: int) -> bool:
        """Whether the tenant may have so much more."""
        if not self._accounts.several or account.slots == 0:
            return True
        most = min(self.slots, self._accounts.room_beside(account, self._max_running)) if self._reserves else self.slots
        return account.slots + slots <= most and account.holder.blocks + blocks <= self.blocks

    def exceeded(self, account: Account) -> bool:
        """Whether the tenant has more than its share, taken while it was alone."""
        if not self._accounts.several:
            return False
        return account.slots > self.slots or account.holder.blocks > self.blocks


class RoomMaker:
    """Finds victims for an entry that finds no place. Whoever it names suffices; otherwise it names no one."""

    def __init__(
        self, *, config: SchedulerConfig, residents: Residents, accounts: Accounts, share: TenantShare
    ) -> None:
        self._config = config
        self._residents = residents
        self._accounts = accounts
        self._share = share

    def victims(self, entry: Entry, shortage: Shortage, now: float) -> list[SequenceState]:
        """Those that go for `entry`: of a lower class, or beyond their tenant's share, or, if it waited long and once only, of a request
        of the tenant that has had most. Empty: no one."""
        policies: tuple[Callable[[Entry], Iterable[SequenceState]], ...] = (self._lower_class, self._beyond_share)
        for policy in policies:
            found = self._enough(policy(entry), shortage)
            if found:
                return found
        if now - entry.since < self._config.target_wait_s or entry.leader.request.has_preempted:
            return []
        found = self._enough(self._newest_of_most_served(entry), shortage)
        entry.leader.request.has_preempted = bool(found)
        return found

    def _enough(self, candidates: Iterable[SequenceState], shortage: Shortage) -> list[SequenceState]:
        """The first of the candidates that together free what is short; [] if all do not."""
        chosen: list[SequenceState] = []
        slots = 0
        freed = self._residents.cache.freed()
        for seq in candidates:
            chosen.append(seq)
            slots += 1 + len(seq.children)
            if seq.table is not None:
                freed.close(seq.table)
            if slots >= shortage.slots and freed.blocks >= shortage.blocks:
                return chosen
        return []

    def _spared(self, seq: SequenceState) -> bool:
        return seq.preemptions >= self._config.max_preemptions

    def _lower_class(self, entry: Entry) -> list[SequenceState]:
        lower = [seq for seq in self._residents.running if seq.request.priority > entry.priority]
        return sorted((seq for seq in lower if not self._spared(seq)), key=_rank, reverse=True)

    def _beyond_share(self, entry: Entry) -> Iterator[SequenceState]:
        for account in self._accounts.active:
            if account is not entry.account and self._share.exceeded(account):
                yield from self._excess(account)

    def _excess(self, account: Account) -> Iterator[SequenceState]:
        slots, freed = account.slots, self._residents.cache.freed()
        own = [seq for seq in self._residents.running if seq.request.account is account and not self._spared(seq)]
        for seq in sorted(own, key=_rank, reverse=True):
            if slots <= self._share.slots and account.holder.blocks - freed.blocks <= self._share.blocks:
                return
            yield seq
            slots -= 1 + len(seq.children)
            if seq.table is not None:
                freed.close(seq.table)

    def _newest_of_most_served(self, entry: Entry) -> list[SequenceState]:
        """Only of a tenant that has had more than the entry's tenant will have had with the entry, or they would take turns for ever."""
        most = max(
            (account for account in self._accounts.active if account.slots), key=lambda a: a.served, default=None
        )
        if most is None or most.served <= entry.account.served + entry.cost / entry.account.weight:
            return []
        own = [seq for seq in self._residents.running if seq.request.account is most and not self._spared(seq)]
        own = [seq for seq in own if seq.request.priority >= entry.priority]
        newest = max((seq.request.order for seq in own), default=None)
        return [seq for seq in own if seq.request.order == newest]
