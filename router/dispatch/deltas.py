"""What workers send of a choice, cut and put together."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shared.types import TokenDelta


def first(delta: TokenDelta, room: int) -> TokenDelta:
    """So many of its tokens: a worker that does not end a choice at its length makes no caller pay for more than was asked.

    Raises ValueError where its rows are not its tokens'.
    """
    if delta.logprobs and len(delta.logprobs) != len(delta.tokens):
        raise ValueError(f"{len(delta.logprobs)} log-probabilities of {len(delta.tokens)} tokens")
    if len(delta.tokens) <= room:
        return delta
    return replace(delta, tokens=delta.tokens[:room], logprobs=delta.logprobs[:room])


def joined(deltas: Sequence[TokenDelta]) -> Iterator[TokenDelta]:
    """What each choice got, as one delta a choice."""
    of: dict[int, list[TokenDelta]] = {}
    for delta in deltas:
        of.setdefault(delta.handle, []).append(delta)
    for handle, several in of.items():
        if len(several) == 1:
            yield several[0]
            continue
        tokens = tuple(token for delta in several for token in delta.tokens)
        yield TokenDelta(
            handle=handle, tokens=tokens, logprobs=tuple(row for delta in several for row in delta.logprobs)
        )
