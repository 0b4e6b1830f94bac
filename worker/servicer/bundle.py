"""What one report has for a stream, and how several of them that wait become one: merged, never dropped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protos import worker_pb2 as pb
from shared.types import PromptLogprobs, StepDeltas, TokenDelta
from shared.wire import worker as wire

MOST = 128  # merged at a time: a choice's tokens of so many steps, with their logprobs, fit a frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Tokens first, then `ends` (Finish and Reject frames); `ended` are the handles of the Finishes."""

    step_seq: int = 0
    acked_seq: int = 0
    deltas: tuple[TokenDelta, ...] = ()
    ends: tuple[pb.Down, ...] = ()
    ended: frozenset[int] = frozenset()


def run_length(bundles: Sequence[Bundle]) -> int:
    """How many of the first may be merged: tokens of a handle that is used again must not pass its earlier end."""
    ended: set[int] = set()
    for count, bundle in enumerate(bundles):
        if count == MOST or any(delta.handle in ended for delta in bundle.deltas):
            return count
        ended |= bundle.ended
    return len(bundles)


def frames_of(bundles: Sequence[Bundle]) -> Iterator[pb.Down]:
    """The bundles as one: each choice's tokens in order, then all ends."""
    deltas = bundles[0].deltas if len(bundles) == 1 else tuple(_merged(bundles))
    if deltas:
        last = bundles[-1]
        yield from wire.step_to_pb(StepDeltas(step_seq=last.step_seq, acked_seq=last.acked_seq, deltas=deltas))
    for bundle in bundles:
        yield from bundle.ends


def _merged(bundles: Sequence[Bundle]) -> Iterator[TokenDelta]:
    of_handle: dict[int, list[TokenDelta]] = {}
    for bundle in bundles:
        for delta in bundle.deltas:
            of_handle.setdefault(delta.handle, []).append(delta)
    for handle, deltas in of_handle.items():
        yield TokenDelta(
            handle=handle,
            tokens=tuple(token for delta in deltas for token in delta.tokens),
            logprobs=tuple(row for delta in deltas for row in delta.logprobs),
            prompt=_joined([delta.prompt for delta in deltas if delta.prompt is not None]),
        )


def _joined(pieces: Sequence[PromptLogprobs]) -> PromptLogprobs | None:
    """Pieces that follow one another, as one."""
    if not pieces:
        return None
    return PromptLogprobs(first=pieces[0].first, rows=tuple(row for piece in pieces for row in piece.rows))
