"""Who may send how many Submits: the free waiting places, shared evenly."""

from collections.abc import Sequence


def shares(free: int, streams: Sequence[int], turn: int) -> dict[int, int]:
    """`free` places over `streams`. What cannot be shared evenly goes round with `turn`, so that none waits for ever for a last place."""
    if not streams:
        return {}
    even, rest = divmod(max(0, free), len(streams))
    first = turn % len(streams)
    lucky = {streams[(first + i) % len(streams)] for i in range(rest)}
    return {stream: even + (stream in lucky) for stream in streams}
