"""Block tables over pool and index: sharing, divergence, canonical blocks, order of eviction."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from worker.events import KvChange
from worker.kvcache.cache import Hits, KvCache, blocks_for
from worker.kvcache.pool import Holder, OutOfBlocks
from worker.kvcache.tables import BlockTable
from worker.plan import TableWrite


def chain(name: str, count: int) -> list[bytes]:
    return [f"{name}{depth}".encode() for depth in range(count)]


def opened(cache: KvCache, positions: int, hashes: list[bytes] | None = None) -> BlockTable:
    hits = cache.probe(hashes, len(hashes) * 16 + 1) if hashes else Hits()
    return cache.open(Holder(), hits, positions)


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_are_counted_up(positions: int, blocks: int) -> None:
    assert blocks_for(positions) == blocks


def test_the_last_token_is_never_a_hit() -> None:
    cache = KvCache(8, prefix_cache=True)
    table = opened(cache, 48)
    cache.register(table, chain("a", 3), None)
    assert len(cache.probe(chain("a", 3), 48).blocks) == 2
    assert len(cache.probe(chain("a", 3), 49).blocks) == 3


def test_a_released_block_that_a_step_names_is_available_only_after_it() -> None:
    cache = KvCache(4, prefix_cache=True)
    table = opened(cache, 64)
    cache.close(table, until=5)
    assert (cache.available, cache.soon) == (0, 4)
    with pytest.raises(OutOfBlocks):
        opened(cache, 1)
    cache.retire(4)
    assert cache.available == 0
    cache.retire(5)
    assert (cache.available, cache.soon) == (4, 0)


def test_a_cached_block_that_is_still_named_by_a_step_can_be_hit() -> None:
    cache = KvCache(4, prefix_cache=True)
    first = opened(cache, 32)
    cache.register(first, chain("a", 2), None)
    cache.close(first, until=1)
    second = opened(cache, 33, chain("a", 2))
    assert second.registered == 2
    cache.retire(1)
    cache.check_integrity([second])
    assert cache.available == 1


def test_a_duplicate_gives_way_to_the_canonical_block() -> None:
    cache = KvCache(8, prefix_cache=True)
    first, second = opened(cache, 32), opened(cache, 32)
    list(second.writes(1))
    cache.register(first, chain("a", 2), None)
    own = list(second.blocks)
    cache.register(second, chain("a", 2), until=3)
    assert second.blocks == first.blocks
    assert list(second.writes(1)) == [TableWrite(1, 0, (first.blocks[0],)), TableWrite(1, 1, (first.blocks[1],))]
    assert cache.soon == len(own)
    cache.retire(3)
    cache.check_integrity([first, second])
    assert cache.available == 6


def test_tails_are_evicted_before_what_they_build_on_and_old_chains_before_new_ones() -> None:
    cache = KvCache(6, prefix_cache=True)
    for name in "ab":
        table = opened(cache, 48)
        cache.register(table, chain(name, 3), None)
        cache.close(table, None)
    left = []
    for _ in range(6):
        opened(cache, 1)
        left.append([len(cache.probe(chain(name, 3), 49).blocks) for name in "ab"])
    assert left == [[2, 3], [1, 3], [0, 3], [0, 2], [0, 1], [0, 0]]


def test_a_hit_makes_a_chain_young_again() -> None:
    cache = KvCache(4, prefix_cache=True)
    for name in "ab":
        table = opened(cache, 32)
        cache.register(table, chain(name, 2), None)
        cache.close(table, None)
    cache.close(opened(cache, 32, chain("a", 2)), None)
    opened(cache, 32)
    assert len(cache.probe(chain("a", 2), 33).blocks) == 2
    assert not cache.probe(chain("b", 2), 33).blocks


def test_a_fork_shares_and_then_diverges_by_copy() -> None:
    cache = KvCache(8, prefix_cache=True)
    first = opened(cache, 20)
    second = cache.fork(first)
    assert cache.available == 6
    shared = first.blocks[1]
    copy = cache.diverge(second, 1, step=7)
    assert copy == (shared, second.blocks[1])
    assert cache.sharers(first, 1) == 1
    cache.close(first, None)
    assert (cache.available, cache.soon) == (5, 1), "step 7 reads the source"
    cache.retire(7)
    cache.check_integrity([second])
    assert cache.available == 6


def test_blocks_are_on_the_account_of_who_took_them_first() -> None:
    cache = KvCache(8, prefix_cache=True)
    one, two = Holder(), Holder()
    first = cache.open(one, Hits(), 32)
    cache.register(first, chain("a", 2), None)
    second = cache.open(two, cache.probe(chain("a", 2), 48), 48)
    assert (one.blocks, two.blocks) == (2, 1)
    cache.close(second, None)
    cache.close(first, None)
    assert (one.blocks, two.blocks) == (0, 0)


def test_a_tally_counts_blocks_that_would_be_left_alone() -> None:
    cache = KvCache(8, prefix_cache=True)
    first = opened(cache, 32)
    second, third = cache.fork(first), opened(cache, 16)
    freed = cache.freed()
    freed.close(first)
    assert freed.blocks == 0
    freed.close(third)
    assert freed.blocks == 1
    freed.close(second)
    assert freed.blocks == 3


def test_what_comes_and_goes_between_two_looks_is_not_told() -> None:
    cache = KvCache(4, prefix_cache=True)
    table = opened(cache, 64)
    cache.register(table, chain("a", 4), None)
    cache.close(table, None)
    cache.flush()
    assert cache.take_changes() == KvChange()
    again = opened(cache, 64)
    cache.register(again, chain("a", 4), None)
    assert cache.take_changes() == KvChange(added=(b"a3",))
    cache.close(again, None)
    cache.flush()
    assert cache.take_changes() == KvChange(removed=(b"a3",))


class CacheMachine(RuleBasedStateMachine):
    """Random tables over few blocks, steps in flight among them."""

    @initialize(num_blocks=st.integers(3, 12), prefix_cache=st.booleans())
    def start(self, num_blocks: int, prefix_cache: bool) -> None:
        self.cache = KvCache(num_blocks, prefix_cache=prefix_cache)
        self.num_blocks = num_blocks
        self.tables: list[tuple[BlockTable, list[bytes]]] = []
        self.step = 0
        self.known: set[bytes] = set()

    def check(self) -> None:
        self.cache.check_integrity([table for table, _ in self.tables])
        change = self.cache.take_changes()
        self.known = (self.known | set(change.added)) - set(change.removed)
        assert self.known == set(self.cache.published())

    @rule(name=st.sampled_from("abc"), length=st.integers(1, 100))
    def open(self, name: str, length: int) -> None:
        hashes = chain(name, 8)
        hits = self.cache.probe(hashes[: length // 16], length)
        if blocks_for(length) - len(hits.blocks) + hits.idle <= self.cache.available:
            self.tables.append((self.cache.open(Holder(), hits, length), hashes))
        self.check()

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), full=st.integers(0, 7))
    def register(self, data: st.DataObject, full: int) -> None:
        table, hashes = data.draw(st.sampled_from(self.tables))
        count = max(table.registered, min(full, len(table.blocks)))
        self.cache.register(table, hashes[:count], data.draw(st.sampled_from([None, self.step])))
        self.check()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork_and_diverge(self, data: st.DataObject) -> None:
        table, hashes = data.draw(st.sampled_from(self.tables))
        other = self.cache.fork(table)
        entry = len(other.blocks) - 1
        if self.cache.available and entry >= other.registered:
            self.cache.diverge(other, entry, self.step)
            hashes = [*hashes[:entry], *(digest + b"'" for digest in hashes[entry:])]
        self.tables.append((other, hashes))
        self.check()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(index)
        self.cache.close(table, data.draw(st.sampled_from([None, self.step, self.step + 1])))
        self.check()

    @rule()
    def retire(self) -> None:
        self.cache.retire(self.step)
        self.step += 1
        self.check()

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        self.check()

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for table, _ in self.tables:
            self.cache.close(table, None)
        for step in (self.step, self.step + 1):
            self.cache.retire(step)
        assert (self.cache.available, self.cache.soon) == (self.num_blocks, 0)
        self.cache.check_integrity([])


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
