"""The index equals a model of plain sets, whatever comes in which order, and forgets what is gone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement.cursor import KvCursor
from router.placement.index import TOKENS_PER_HASH, KvIndex
from shared.types import KvDelta, KvSnapshot

HASHES = [bytes([number]) * 16 for number in range(8)]
SOME = st.lists(st.sampled_from(HASHES), max_size=5)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "replace", "predict", "release", "fade", "rejoin"]), st.integers(0, 2), SOME
    ),
    max_size=40,
)


def longest(chain: list[bytes], held: set[bytes]) -> int:
    count = 0
    while count < len(chain) and chain[count] in held:
        count += 1
    return count * TOKENS_PER_HASH


@settings(max_examples=150, deadline=None)
@given(ACTS)
def test_the_index_equals_a_model_of_sets(acts):
    index = KvIndex()
    members = [index.join(f"w{number}", 64) for number in range(3)]
    held: list[set[bytes]] = [set(), set(), set()]
    open_ = [[], [], []]
    fading = [[], [], []]
    for act, at, some in acts:
        member = members[at]
        if act in ("add", "remove", "replace"):
            held[at] = {"add": held[at] | set(some), "remove": held[at] - set(some), "replace": set(some)}[act]
            fading[at].clear()
            if act == "replace":
                index.replace(member, set(some))
            else:
                index.change(member, some if act == "add" else (), some if act == "remove" else ())
        elif act == "predict":
            prompt = list(dict.fromkeys(some))  # its hashes are a chain: none comes twice
            open_[at].append((index.predict(member, prompt), prompt))
        elif act == "release" and open_[at]:
            open_[at].pop()[0].release()
        elif act == "fade" and open_[at]:
            prediction, hashes = open_[at].pop()
            prediction.fade()
            fading[at].append(hashes)
        elif act == "rejoin":
            index.leave(member)
            members[at] = index.join(f"w{at}", 64)
            held[at], open_[at], fading[at] = set(), [], []
        index.check_integrity()
        expected = {}
        for number in range(3):
            all_ = held[number].union(*(hashes for _, hashes in open_[number]), *fading[number])
            if longest(HASHES, all_):
                expected[f"w{number}"] = longest(HASHES, all_)
        assert index.match(HASHES) == expected


def test_router_case_4_the_index_is_empty_after_many_unique_prompts():
    index = KvIndex()
    member = index.join("w", 1_000)
    for number in range(20_000):
        hashes = [number.to_bytes(8, "little") + bytes([depth]) * 8 for depth in range(4)]
        index.predict(member, hashes).fade()
        index.change(member, hashes, ())
        index.change(member, (), hashes)
    assert len(index) == 0


def cursor_of(index: KvIndex) -> tuple[KvCursor, list[str]]:
    asked: list[str] = []
    return KvCursor(index, index.join("w", 64), lambda: asked.append("ask"), lambda: asked.append("joined")), asked


def test_router_case_9_a_gap_asks_exactly_one_snapshot_and_the_cursor_never_goes_back():
    index = KvIndex()
    cursor, asked = cursor_of(index)
    cursor.snapshot(KvSnapshot(epoch=1, sequence=5, hashes=(HASHES[0],), last=True))
    cursor.delta(KvDelta(epoch=1, sequence=6, added=(HASHES[1],), removed=()))
    assert index.match(HASHES) == {"w": 2 * TOKENS_PER_HASH}
    for sequence in (8, 9, 10):
        cursor.delta(KvDelta(epoch=1, sequence=sequence, added=(HASHES[2],), removed=()))
    assert asked == ["ask", "joined", "ask"]
    assert cursor.position == (1, 6)
    cursor.snapshot(KvSnapshot(epoch=1, sequence=10, hashes=tuple(HASHES[:2]), last=False))
    cursor.snapshot(KvSnapshot(epoch=1, sequence=10, hashes=(HASHES[2],), last=True))
    cursor.delta(KvDelta(epoch=1, sequence=11, added=(HASHES[3],), removed=()))
    assert index.match(HASHES) == {"w": 4 * TOKENS_PER_HASH}
    assert (cursor.resyncs, cursor.position) == (1, (1, 11))


def test_router_case_5_the_index_is_as_large_as_the_workers_sets():
    index = KvIndex()
    one, two = index.join("a", 64), index.join("b", 64)
    index.replace(one, set(HASHES[:5]))
    index.replace(two, set(HASHES[3:]))
    index.leave(one)
    assert len(index) == len(two.hashes) == 5
