"""Adapters' frames come back the same, and a whole catalog goes in frames of at most 64 KiB."""

from hypothesis import given
from hypothesis import strategies as st

from protos import worker_pb2 as pb
from shared import rpc
from shared.types import AdapterInfo, AdapterLevel, AdapterLoad, AdapterState
from shared.wire import adapters as wire

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
INFOS = st.builds(
    AdapterInfo,
    name=st.text(min_size=1, max_size=wire.MAX_NAME),
    digest=st.binary(max_size=32),
    level=st.sampled_from(AdapterLevel),
    rank=U32,
    bytes=U64,
    pinned=st.booleans(),
    loaded_unix_ms=U64,
    error=st.text(max_size=50),
    source=st.text(max_size=50),
    listed=st.booleans(),
)
STATES = st.builds(
    AdapterState,
    entries=st.lists(INFOS, max_size=5).map(tuple),
    removed=st.lists(st.text(max_size=20), max_size=5).map(tuple),
    complete=st.booleans(),
)


def received(state: AdapterState) -> list[AdapterState]:
    frames = [frame.SerializeToString() for frame in wire.adapter_state_to_pb(state)]
    assert all(len(frame) <= rpc.FRAME_LIMIT for frame in frames)
    return [wire.adapter_state_from_pb(pb.Down.FromString(frame).adapter_state) for frame in frames]


@given(STATES)
def test_a_small_state_survives_in_one_frame(state):
    assert received(state) == [state]


def test_a_large_catalog_arrives_in_order_and_only_its_last_frame_is_complete():
    state = AdapterState(
        entries=tuple(
            AdapterInfo(
                name=f"{i:03d}" + "\U0001f600" * 250, digest=bytes(32), error="\U0001f600" * 5_000, source="s" * 5_000
            )
            for i in range(100)
        ),
        removed=tuple("r" * 250 + str(i) for i in range(300)),
        complete=True,
    )
    frames = received(state)
    assert [frame.complete for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert [info.name for frame in frames for info in frame.entries] == [info.name for info in state.entries]
    assert [name for frame in frames for name in frame.removed] == list(state.removed)
    assert all(len(info.error) == wire.MAX_ERROR for frame in frames for info in frame.entries)


def test_the_most_loads_that_are_told_fit_a_frame():
    largest = AdapterLoad(digest=bytes(32), running=2**32 - 1, waiting=2**32 - 1, idle_ms=2**32 - 1)
    load = pb.Load(adapters=[wire.adapter_load_to_pb(largest)] * wire.MOST_LOADS)
    assert pb.Down(load=load).ByteSize() <= rpc.FRAME_LIMIT - 1_000
    assert wire.adapter_load_from_pb(wire.adapter_load_to_pb(largest)) == largest


def test_a_level_that_is_not_known_counts_as_source():
    assert wire.adapter_info_from_pb(pb.AdapterInfo(name="a")).level is AdapterLevel.SOURCE
