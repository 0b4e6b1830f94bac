"""Those that have slots and KV: how they come to them, fork, and lose them.

What a step in flight names is let go under that step (`until`), and can be taken again when it has retired.
"""

from collections import Counter

from shared.hashing import BLOCK_SIZE
from worker.kvcache.cache import Hits, KvCache
from worker.scheduler.adapters import Adapters, SlotLoader
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.slots import SlotPool
from worker.scheduler.steptime import pairs_of
from worker.sequence import Phase, SequenceState


class Residents:
    """`running` is ordered by admission; a FORKING sequence is not in it, but among its leader's children."""

    def __init__(self, *, cache: KvCache, config: SchedulerConfig, loader: SlotLoader | None) -> None:
        self.cache = cache
        self.slots = SlotPool(config.max_running)
        self.adapters = Adapters(config, loader, lambda: self.retired)
        self.running: dict[SequenceState, None] = {}
        self.retired = -1  # the last step that did

    def __len__(self) -> int:
        """Sequences that have a slot."""
        return len(self.running) + sum(len(seq.children) for seq in self.running)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of unfinished prefills that no plan has scheduled yet."""
        return sum(pending for seq in self.running if (pending := seq.pending) > 1)

    @property
    def prefill_pairs(self) -> int:
        """(query, key) pairs of their attention."""
        return sum(pairs_of(seq.scheduled, pending) for seq in self.running if (pending := seq.pending) > 1)

    def admit(self, sequences: list[SequenceState], hits: Hits) -> None:
        """The first runs the prefill, of all of its known tokens behind the hits; the others fork from it."""
        leader, *children = sequences
        leader.table = self.cache.open(leader.request.account.holder, hits, len(leader.tokens))
        leader.computed = leader.scheduled = leader.table.registered * BLOCK_SIZE
        leader.children = children
        for seq in sequences:
            seq.slot = self.slots.take()
            seq.request.account.slots += 1
            if seq.request.adapter is not None:
                self.adapters.attach(seq.request.adapter)
            seq.phase = Phase.FORKING
        for child in children:
            child.leader = leader
        self._run(leader)

    def _run(self, seq: SequenceState) -> None:
        seq.phase, seq.leader = Phase.RUNNING, None
        self.running[seq] = None

    def fork(self, leader: SequenceState, step: int) -> list[SequenceState]:
        """All that waited for the leader run from now on, with its blocks; `step` computes the last of them."""
        assert leader.table is not None
        children, leader.children = leader.children, []
        for child in children:
            child.table = self.cache.fork(leader.table)
            child.computed, child.scheduled, child.last_step = leader.computed, leader.scheduled, step
            self._run(child)
        return children

    def evict(self, leader: SequenceState) -> list[SequenceState]:
        """It loses all it has, and so do those that wait for it; returns them all, in order."""
        sequences = [leader, *leader.children]
        del self.running[leader]
        leader.children = []
        for seq in sequences:
            self._release(seq)
            seq.phase, seq.leader = Phase.NEW, None
        return sequences

    def remove(self, seq: SequenceState) -> None:
        """It has ended. Where others wait for its prefill, the first of them takes over the blocks."""
        if seq.phase is Phase.FORKING:
            assert seq.leader is not None
            seq.leader.children.remove(seq)
            seq.leader = None
        else:
            del self.running[seq]
            if seq.children:
                self._hand_over(seq)
        self._release(seq)

    def _hand_over(self, leader: SequenceState) -> None:
        """What a step in flight computes for `leader` is computed again: the heir counts only what has retired."""
        assert leader.table is not None
        heir, *rest = leader.children
        leader.children = []
        heir.table = self.cache.fork(leader.table)
        heir.computed = heir.scheduled = leader.computed
        heir.children = rest
        for child in rest:
            child.leader = heir
        self._run(heir)

    def in_flight(self, seq: SequenceState) -> int | None:
        """The latest step in flight that names the sequence's slot or blocks."""
        return seq.last_step if seq.last_step > self.retired else None

    def _release(self, seq: SequenceState) -> None:
        until = self.in_flight(seq)
        if seq.table is not None:
            self.cache.close(seq.table, until)
            seq.table = None
        self.slots.release(seq.slot, until)
        seq.request.account.slots -= 1
        if seq.request.adapter is not None:
            self.adapters.detach(seq.request.adapter, seq.last_step)
        seq.slot, seq.started = -1, False
        seq.computed = seq.scheduled = 0
        seq.incarnation += 1

    def retire(self, step: int) -> None:
        """`step` is in flight no more."""
        self.retired = step
        self.slots.retire(step)
        self.cache.retire(step)

    def check_integrity(self) -> None:
        """Raises AssertionError naming what does not hold."""
        resident = [*self.running, *(child for seq in self.running for child in seq.children)]
        self.cache.check_integrity([seq.table for seq in resident if seq.table is not None])
        self.slots.check_integrity([seq.slot for seq in resident])
        counted = Counter(seq.request.account for seq in resident)
        for account, slots in counted.items():
            assert account.slots == slots, f"residents: tenant {account.tenant_id} has {slots} slots"
        for seq in self.running:
            assert seq.phase is Phase.RUNNING, "residents: who runs is not RUNNING"
            assert seq.table is not None, "residents: a running sequence without blocks"
            assert seq.computed <= seq.scheduled <= len(seq.tokens) + seq.unknown, "residents: positions out of order"
            assert seq.scheduled <= len(seq.table.blocks) * BLOCK_SIZE, "residents: positions beyond the table"
            for child in seq.children:
                assert child.phase is Phase.FORKING, "residents: who forks is not FORKING"
                assert child.leader is seq, "residents: a child of another"
                assert child.table is None, "residents: a child with blocks"
