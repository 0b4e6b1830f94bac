"""The dispatcher's side of placement: what a policy is asked, and what the index is told of each dispatch until its worker tells."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from router.placement import POLICIES
from router.placement.index import KvIndex, Member, Prediction
from router.placement.outputs import OutputMean
from router.placement.view import Want, WorkerView


class Placed(Protocol):
    """Who is placed; stands for itself from its dispatch on."""

    def __hash__(self) -> int:
        """By identity."""


class Placing:
    """One for all pools. Each of a flight's dispatches ends in `begun` or `over`, or is followed by another."""

    def __init__(self, policy: str, index: KvIndex):
        self._policy = POLICIES[policy]
        self._index = index
        self._outputs = OutputMean()
        self._expected: dict[Placed, Prediction] = {}

    def choose(self, views: Sequence[WorkerView], want: Want, *, max_tokens: int) -> tuple[str, Want]:
        """The worker_id of one of `views`, and `want` as it was judged."""
        seen = replace(want, cached=self._index.match(want.hashes), outputs=self._outputs.expected(max_tokens))
        return self._policy(views, seen), seen

    def sent(self, who: Placed, member: Member | None, want: Want) -> None:
        """It is on its way; `member` is its worker in the index, None where that hears of no caches."""
        self.over(who)
        if member is not None and want.hashes:
            self._expected[who] = self._index.predict(member, want.hashes)

    def begun(self, who: Placed) -> None:
        """It has a token: its prompt is computed."""
        prediction = self._expected.pop(who, None)
        if prediction is not None:
            prediction.fade()

    def over(self, who: Placed) -> None:
        """It was rejected, aborted or lost, or has ended."""
        prediction = self._expected.pop(who, None)
        if prediction is not None:
            prediction.release()

    def ended(self, who: Placed, output_tokens: Sequence[int]) -> None:
        """It has ended by itself; each choice gave so many tokens."""
        self.over(who)
        for tokens in output_tokens:
            self._outputs.ended(tokens)
