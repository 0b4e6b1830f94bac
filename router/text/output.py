"""One choice's way from a worker's tokens to the pieces that a client sees: text, stop strings, log-probabilities, the count.

A choice counts its tokens up to the one that completes a stop string, or to the worker's end. What a worker still sends after that is
overshoot, kept apart and billed to no one. A stop token counts, and gives no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from router.request import Ended, Logprobs, Piece, TokenText
from router.text.detokenize import Detokenizer
from router.text.stops import Automaton, StopMatcher
from router.text.vocabulary import Vocabulary
from shared.types import Finished, TokenDelta, TokenLogprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputSpec:
    """What all choices of a request share. `stop_tokens` are those that end a choice: the model's own (unless ignored), the caller's."""

    vocabulary: Vocabulary
    prompt: Sequence[int]
    stops: Automaton | None
    stop_tokens: frozenset[int]


class ChoiceOutput:
    """Feed it deltas in order, then the end. `ended` says whether the last piece is out."""

    def __init__(self, spec: OutputSpec, index: int):
        self._spec = spec
        self._index = index
        self._detokenizer = Detokenizer(spec.vocabulary, spec.prompt)
        self._matcher = StopMatcher(spec.stops) if spec.stops else None
        self.ended = False
        self.reason = ""  # why it ended
        self.counted = 0  # tokens
        self.overshoot = 0  # tokens

    def push(self, delta: TokenDelta) -> Piece | None:
        """What `delta` shows; None after the end. The piece carries `ended` where a stop string is complete."""
        if self.ended:
            self.overshoot += len(delta.tokens)
            return None
        shown: list[str] = []
        taken = 0
        for token in delta.tokens:
            taken += 1
            shown.append(self._text_of(token))
            if self._matcher and self._matcher.matched is not None:
                self.ended, self.reason = True, "stop"
                break
        self.counted += taken
        self.overshoot += len(delta.tokens) - taken
        return Piece(
            index=self._index,
            text="".join(shown),
            tokens=delta.tokens[:taken],
            logprobs=self._logprobs(delta.tokens[:taken], delta.logprobs[:taken]),
            ended=Ended(reason="stop", stop_string=self._matcher.matched) if self.ended and self._matcher else None,
        )

    def finish(self, finished: Finished) -> Piece | None:
        """The last piece, where a stop string has not given it: the text held back, and the reason."""
        if self.ended:
            return None
        self.ended = True
        text = self._shown(self._detokenizer.finish())
        matched = self._matcher.matched if self._matcher else None
        if self._matcher and matched is None:
            text += self._matcher.finish()
        ended = Ended(reason="stop", stop_string=matched) if matched is not None else _ended(finished)
        self.reason = ended.reason
        return Piece(index=self._index, text=text, ended=ended)

    def _text_of(self, token: int) -> str:
        return "" if token in self._spec.stop_tokens else self._shown(self._detokenizer.push(token))

    def _shown(self, text: str) -> str:
        return self._matcher.push(text) if self._matcher else text

    def _logprobs(self, tokens: Sequence[int], rows: Sequence[TokenLogprobs]) -> tuple[Logprobs, ...]:
        return tuple(self._row(token, row) for token, row in zip(tokens, rows, strict=bool(rows)))

    def _row(self, token: int, row: TokenLogprobs) -> Logprobs:
        return shown_logprobs(self._spec.vocabulary, token, row)


def shown_logprobs(vocabulary: Vocabulary, token: int, row: TokenLogprobs) -> Logprobs:
    """The log-probabilities where `token` stands, with the tokens' bytes."""
    bytes_of = vocabulary.bytes_of
    top = tuple(TokenText(token=t, logprob=value, text=bytes_of(t)) for t, value in row.top)
    return Logprobs(sampled=TokenText(token=token, logprob=row.sampled, text=bytes_of(token)), top=top)


def _ended(finished: Finished) -> Ended:
    return Ended(reason=finished.reason.value, stop_token=finished.stop_token)
