"""A report's items by the stream that they are for."""

from collections import defaultdict

from shared.types import Finished, Rejected, TokenDelta
from worker.events import StepOutput

Share = tuple[list[TokenDelta], list[Finished], list[Rejected]]


def by_stream(output: StepOutput) -> dict[int, Share]:
    """Each stream's tokens, ends and rejects, in order."""
    shares: defaultdict[int, Share] = defaultdict(lambda: ([], [], []))
    for stream, delta in output.deltas:
        shares[stream][0].append(delta)
    for stream, finished in output.finished:
        shares[stream][1].append(finished)
    for stream, rejected in output.rejected:
        shares[stream][2].append(rejected)
    return shares
