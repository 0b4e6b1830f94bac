"""Adapters on the internal stream and in the worker's unary calls, to and from `shared.types`."""

from collections.abc import Iterator, Sequence

from protos import worker_pb2 as pb
from shared.types import AdapterInfo, AdapterLevel, AdapterLoad, AdapterState

MAX_NAME = 256  # characters of a canonical name; four bytes each at most
MAX_ERROR = 1_000  # characters of an entry's error that are told
MAX_SOURCE = 4_096  # and of its source
MOST_LOADS = 800  # adapters in a Load, of at most 54 bytes each
_STATE_BYTES = 48 << 10  # of entries in a frame; one is at most about 22 KiB: 4 bytes a character


def adapter_load_to_pb(load: AdapterLoad) -> pb.AdapterLoad:
    """Requests of one version."""
    return pb.AdapterLoad(digest=load.digest, running=load.running, waiting=load.waiting, idle_ms=load.idle_ms)


def adapter_load_from_pb(load: pb.AdapterLoad) -> AdapterLoad:
    """Requests of one version."""
    return AdapterLoad(digest=load.digest, running=load.running, waiting=load.waiting, idle_ms=load.idle_ms)


def adapter_info_to_pb(info: AdapterInfo) -> pb.AdapterInfo:
    """An entry of the catalog; what is too long to tell is cut."""
    return pb.AdapterInfo(
        name=info.name,
        digest=info.digest,
        level=pb.AdapterLevel.Value(f"ADAPTER_LEVEL_{info.level.name}"),
        rank=info.rank,
        bytes=info.bytes,
        pinned=info.pinned,
        loaded_unix_ms=info.loaded_unix_ms,
        error=info.error[:MAX_ERROR],
        source=info.source[:MAX_SOURCE],
        listed=info.listed,
    )


def adapter_info_from_pb(info: pb.AdapterInfo) -> AdapterInfo:
    """An entry of the catalog; a level that is not known here counts as SOURCE."""
    level = pb.AdapterLevel.Name(info.level).removeprefix("ADAPTER_LEVEL_") if info.level in _LEVELS else "SOURCE"
    return AdapterInfo(
        name=info.name,
        digest=info.digest,
        level=AdapterLevel[level],
        rank=info.rank,
        bytes=info.bytes,
        pinned=info.pinned,
        loaded_unix_ms=info.loaded_unix_ms,
        error=info.error,
        source=info.source,
        listed=info.listed,
    )


_LEVELS = frozenset(pb.AdapterLevel.Value(f"ADAPTER_LEVEL_{level.name}") for level in AdapterLevel)


def adapter_state_to_pb(state: AdapterState) -> Iterator[pb.Down]:
    """One frame, or more where it would not fit; only the last is `complete`, if the whole is."""
    frame = pb.AdapterState()
    size = 0
    for piece in _pieces(state):
        if size + piece.ByteSize() > _STATE_BYTES:
            yield pb.Down(adapter_state=frame)
            frame, size = pb.AdapterState(), 0
        frame.MergeFrom(piece)
        size += piece.ByteSize()
    frame.complete = state.complete
    yield pb.Down(adapter_state=frame)


def _pieces(state: AdapterState) -> Iterator[pb.AdapterState]:
    for name in state.removed:
        yield pb.AdapterState(removed=[name])
    for info in state.entries:
        yield pb.AdapterState(entries=[adapter_info_to_pb(info)])


def adapter_state_from_pb(state: pb.AdapterState) -> AdapterState:
    """What a frame tells."""
    entries: Sequence[pb.AdapterInfo] = state.entries
    return AdapterState(
        entries=tuple(map(adapter_info_from_pb, entries)), removed=tuple(state.removed), complete=state.complete
    )
