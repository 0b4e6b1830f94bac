"""Who has which prefix: published block hash -> bitmask of workers, with the set of each worker's hashes beside it.

*Confirmed* hashes are what a worker says it has. *Predicted* ones belong to a dispatch that its worker has not told of yet, and are
counted, because dispatches may share them. Nothing here is remembered for prompts as such: a worker's hashes are at most its blocks, and a
prediction goes with its dispatch, so that a million unique prompts leave nothing behind.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shared.hashing import BLOCK_SIZE, PUBLISH_EVERY

TOKENS_PER_HASH = BLOCK_SIZE * PUBLISH_EVERY


class TooMany(ValueError):
    """A worker says that it has more hashes than blocks."""


@dataclass(kw_only=True, slots=True, eq=False)
class Member:
    """A worker in the index. `bit` is its place in the masks; `capacity` its number of KV blocks."""

    worker_id: str
    bit: int
    capacity: int
    hashes: set[bytes] = field(default_factory=set)
    predicted: dict[bytes, int] = field(default_factory=dict)  # hash -> dispatches
    fading: list["Prediction"] = field(default_factory=list)


@dataclass(kw_only=True, slots=True, eq=False)
class Prediction:
    """What one dispatch is expected to leave in its worker's cache. Release it once the worker tells, or will never."""

    index: "KvIndex"
    member: Member
    hashes: Sequence[bytes]

    def release(self) -> None:
        """Nothing is expected any more: the dispatch was rejected, aborted or lost. Idempotent."""
        hashes, self.hashes = self.hashes, ()
        self.index.forget(self.member, hashes)

    def fade(self) -> None:
        """The prompt is computed: the worker's next change, which is on its way, tells of it. Until then it stays."""
        if self.hashes:
            self.member.fading.append(self)


class KvIndex:
    """All workers of one router. Every operation is O(1) a hash."""

    def __init__(self) -> None:
        self._confirmed: dict[bytes, int] = {}
        self._predicted: dict[bytes, int] = {}
        self._members: dict[int, Member] = {}  # by bit
        self._free: list[int] = []  # bits given back, least first

    def __len__(self) -> int:
        """Distinct hashes, confirmed and predicted each on their own."""
        return len(self._confirmed) + len(self._predicted)

    def join(self, worker_id: str, capacity: int) -> Member:
        """A worker with `capacity` KV blocks; nothing is known of it yet."""
        bit = heapq.heappop(self._free) if self._free else len(self._members)
        member = self._members[bit] = Member(worker_id=worker_id, bit=bit, capacity=capacity)
        return member

    def leave(self, member: Member) -> None:
        """The worker is gone, with all that it had. Idempotent."""
        if self._members.get(member.bit) is not member:
            return
        _clear(self._confirmed, member.hashes, 1 << member.bit)
        _clear(self._predicted, member.predicted, 1 << member.bit)
        member.hashes, member.predicted, member.fading = set(), {}, []
        del self._members[member.bit]
        heapq.heappush(self._free, member.bit)

    # ---- what workers tell

    def change(self, member: Member, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Hashes that appeared and went. Raises TooMany."""
        bit, hashes, confirmed = 1 << member.bit, member.hashes, self._confirmed
        gone = hashes.intersection(removed)  # each once, however often it is told: a bit cleared twice would be set
        hashes -= gone
        _clear(confirmed, gone, bit)
        for digest in added:
            hashes.add(digest)
            confirmed[digest] = confirmed.get(digest, 0) | bit
        self._told(member)

    def replace(self, member: Member, hashes: Set[bytes]) -> None:
        """All that the worker has. Raises TooMany."""
        self.change(member, hashes - member.hashes, member.hashes - hashes)

    def _told(self, member: Member) -> None:
        fading, member.fading = member.fading, []
        for prediction in fading:
            prediction.release()
        if len(member.hashes) > member.capacity:
            raise TooMany(f"{member.worker_id} tells of {len(member.hashes)} hashes and has {member.capacity} blocks")

    # ---- what is expected

    def predict(self, member: Member, hashes: Sequence[bytes]) -> Prediction:
        """A prompt with these hashes is on its way there. No more is expected of a worker than its blocks hold."""
        bit, counts, predicted = 1 << member.bit, member.predicted, self._predicted
        room = member.capacity - len(counts)
        taken = hashes if len(hashes) <= room else [digest for digest in hashes if digest in counts]
        if self._members.get(member.bit) is not member:
            taken = ()
        for digest in taken:
            counts[digest] = counts.get(digest, 0) + 1
            predicted[digest] = predicted.get(digest, 0) | bit
        return Prediction(index=self, member=member, hashes=taken)

    def forget(self, member: Member, hashes: Iterable[bytes]) -> None:
        """One dispatch less expects these; what no other does goes."""
        counts, gone = member.predicted, []
        for digest in hashes:
            left = counts.get(digest, 0) - 1
            if left > 0:
                counts[digest] = left
            elif left == 0:
                del counts[digest]
                gone.append(digest)
        _clear(self._predicted, gone, 1 << member.bit)

    # ---- what is asked

    def match(self, hashes: Sequence[bytes]) -> Mapping[str, int]:
        """Tokens of the longest cached beginning of the chain `hashes`, by worker; those with none are left out."""
        confirmed, predicted = self._confirmed.get, self._predicted.get
        found: dict[str, int] = {}
        alive, depth = -1, 0
        for digest in hashes:
            left = alive & (confirmed(digest, 0) | predicted(digest, 0))
            if left != alive:
                if depth:
                    self._stopped(alive ^ left, depth, found)
                alive = left
                if not alive:
                    return found
            depth += 1
        if alive > 0:
            self._stopped(alive, depth, found)
        return found

    def _stopped(self, mask: int, depth: int, found: dict[str, int]) -> None:
        """The workers of `mask` have `depth` hashes and no more."""
        members, tokens = self._members, depth * TOKENS_PER_HASH
        while mask:
            bit = mask.bit_length() - 1
            found[members[bit].worker_id] = tokens
            mask ^= 1 << bit

    def check_integrity(self) -> None:
        """Raises AssertionError naming what does not hold. O(everything): for tests."""
        for name, masks in (("confirmed", self._confirmed), ("predicted", self._predicted)):
            expected: dict[bytes, int] = {}
            for member in self._members.values():
                for digest in member.hashes if name == "confirmed" else member.predicted:
                    expected[digest] = expected.get(digest, 0) | 1 << member.bit
            assert masks == expected, f"{name}: the masks differ from the workers' sets"
        for bit, member in self._members.items():
            assert member.bit == bit, f"{member.worker_id} stands at another's place"
            assert len(member.hashes) <= member.capacity, f"{member.worker_id} has more hashes than blocks"
            assert len(member.predicted) <= member.capacity, f"more is expected of {member.worker_id} than it holds"
            assert all(count > 0 for count in member.predicted.values()), "an expectation of no dispatch"
        assert sorted([*self._free, *self._members]) == list(range(len(self._free) + len(self._members))), "bits lost"


def _clear(masks: dict[bytes, int], hashes: Iterable[bytes], bit: int) -> None:
    """Take `bit`, which is set, out of each hash's mask."""
    for digest in hashes:
        mask = masks[digest] ^ bit
        if mask:
            masks[digest] = mask
        else:
            del masks[digest]
