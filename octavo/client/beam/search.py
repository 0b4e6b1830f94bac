"""Beam search as transformers' generate(num_beams=...) defines it, without any model: it asks for what follows each beam, and is told.

A round takes the best continuations over all beams. Those that end (at an end-of-sequence token, or at `max_tokens`) and are among the
first `num_beams` become finished, scored by sum of log-probabilities / length ** length_penalty; the best `num_beams` of the others go on.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shared.errors import InvalidRequest

MOST_ALTERNATIVES = 20  # the most log-probabilities that the API gives for a position
MOST_PENALTY = 10.0  # either way: a power of the length, which no float may outgrow

EarlyStopping = bool | Literal["never"]
Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamSettings:
    """`early_stopping`: True ends with the first `num_beams` finished; False when no running beam, were it to end now, could beat the
    worst of these; "never" when none could at any length up to `max_tokens`.
    """

    num_beams: int
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the parameter."""
        most = MOST_ALTERNATIVES - len(set(self.eos_token_ids))
        if not 1 <= self.num_beams <= most:
            message = f"num_beams must be from 1 to {most}: with {len(set(self.eos_token_ids))} ids that end a sequence"
            raise InvalidRequest(message, param="num_beams")
        if self.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        if not -MOST_PENALTY <= self.length_penalty <= MOST_PENALTY:
            message = f"length_penalty must be between {-MOST_PENALTY:g} and {MOST_PENALTY:g}"
            raise InvalidRequest(message, param="length_penalty")
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequest('early_stopping must be True, False or "never"', param="early_stopping")

    @property
    def alternatives(self) -> int:
        """The log-probabilities to ask for at each position: `num_beams` of tokens that do not end a sequence are among so many."""
        return self.num_beams + len(set(self.eos_token_ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """A sequence: its tokens after the prompt, the sum of their log-probabilities, and its score once it has ended."""

    tokens: Tokens
    logprob: float
    score: float = 0.0


def _by_logprob(one: Hypothesis) -> float:
    return one.logprob


def _by_score(one: Hypothesis) -> float:
    return one.score


@dataclass(kw_only=True, slots=True)
class BeamSearch:
    """One search. While `running` is not empty, `advance` it by what follows each of these; then `finished` holds the outcome, best
    first: `num_beams` sequences, or fewer where fewer exist.
    """

    settings: BeamSettings
    running: list[Hypothesis] = field(default_factory=lambda: [Hypothesis(tokens=(), logprob=0.0)])
    finished: list[Hypothesis] = field(default_factory=list)
    length: int = 0  # tokens of each running sequence

    def advance(self, following: Sequence[Mapping[int, float]]) -> None:
        """`following[i]` holds at least the `alternatives` likeliest tokens after `running[i]`, with their log-probabilities."""
        settings, full = self.settings, len(self.finished) == self.settings.num_beams
        candidates = self._continuations(following)
        self.length += 1
        ended = [one for one in candidates[: settings.num_beams] if self._ends(one)]
        if not (full and settings.early_stopping is True):
            self._finish(ended)
        going_on = (one for one in candidates if not self._ends(one))
        self.running = [one for one, _ in zip(going_on, range(settings.num_beams), strict=False)]
        if not self._improvable():
            self.running = []

    def _continuations(self, following: Sequence[Mapping[int, float]]) -> list[Hypothesis]:
        """By descending log-probability; where two are equal, that of the better beam, as it lies first."""
        made = [
            Hypothesis(tokens=(*beam.tokens, token), logprob=beam.logprob + logprob)
            for beam, after in zip(self.running, following, strict=True)
            for token, logprob in after.items()
        ]
        return sorted(made, key=_by_logprob, reverse=True)

    def _ends(self, one: Hypothesis) -> bool:
        return one.tokens[-1] in self.settings.eos_token_ids or len(one.tokens) == self.settings.max_tokens

    def _finish(self, ended: Sequence[Hypothesis]) -> None:
        penalty = float(self.length) ** self.settings.length_penalty
        scored = [Hypothesis(tokens=one.tokens, logprob=one.logprob, score=one.logprob / penalty) for one in ended]
        self.finished = heapq.nlargest(self.settings.num_beams, [*self.finished, *scored], key=_by_score)

    def _improvable(self) -> bool:
        """Whether going on could change the outcome, as the settings judge that."""
        settings = self.settings
        if len(self.finished) < settings.num_beams or not self.running:
            return True
        if settings.early_stopping is True:
            return False
        hopeful = settings.early_stopping == "never" and settings.length_penalty > 0
        length = settings.max_tokens if hopeful else self.length
        best: float = self.running[0].logprob / float(length) ** settings.length_penalty
        return best > self.finished[-1].score
