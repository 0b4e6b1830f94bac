"""A search's rounds as messages of a Session, and its outcome; the same for the blocking client and that of an event loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from octavo.client.beam.search import BeamSearch, BeamSettings, EarlyStopping, Hypothesis, Tokens
from octavo.client.requests import Messages
from octavo.client.results import Model
from protos import inference_pb2 as pb
from shared.errors import ContextLengthExceeded, Internal, InvalidRequest, ModelNotFound, Unavailable
from shared.wire.inference import error_from_pb

Prompt = str | Sequence[int] | Messages


@dataclass(frozen=True, kw_only=True, slots=True)
class Beam:
    """One of the sequences found. `tokens` hold the end-of-sequence token where one ended it ("stop"), `text` does not.

    `logprob` is the sum over the tokens, `score` that over length ** length_penalty.
    """

    text: str
    tokens: Tokens
    logprob: float
    score: float
    finish_reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamResult:
    """Best first. `prompt_tokens` are those that the search began with."""

    model: str
    prompt_tokens: Tokens
    beams: tuple[Beam, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamOptions:
    """What a caller says; `eos_token_ids` None means the model's own. `num_return` beams are returned, all where it is None."""

    num_beams: int = 4
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    eos_token_ids: Sequence[int] | None = None
    num_return: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the parameter."""
        if self.num_return is not None and not 1 <= self.num_return <= self.num_beams:
            raise InvalidRequest("num_return must be from 1 to num_beams", param="num_return")

    def settings(self, model: Model) -> BeamSettings:
        """For a search with this model."""
        eos = model.eos_token_ids if self.eos_token_ids is None else self.eos_token_ids
        return BeamSettings(
            num_beams=self.num_beams,
            max_tokens=self.max_tokens,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            eos_token_ids=tuple(eos),
        )


class Options(TypedDict, total=False):
    """BeamOptions as keywords; `num_beams` 4 and `max_tokens` 16 where they are not given."""

    num_beams: int
    max_tokens: int
    length_penalty: float
    early_stopping: EarlyStopping
    eos_token_ids: Sequence[int] | None
    num_return: int | None


def given(prompt: Prompt) -> Tokens | None:
    """The token ids where the prompt is such; None where it needs a tokenizer."""
    tokens = tuple(part for part in prompt if isinstance(part, int))
    return tokens if len(tokens) == len(prompt) and not isinstance(prompt, str) else None


def chosen(models: Sequence[Model], name: str) -> Model:
    """The model of this name, or the only one. Raises ModelNotFound, or Unavailable where none is served."""
    if not models:
        raise Unavailable("no model is served now", retry_after=1.0)
    found = [model for model in models if model.id == name or not name]
    if len(found) > 1:
        raise ModelNotFound("several models are served: name one", param="model")
    if not found:
        raise ModelNotFound(f"the model {name!r} does not exist", param="model")
    return found[0]


class Rounds:
    """One search over one Session: `requests` asks what follows each beam; the round is over when `take` says so, and `end` goes on."""

    def __init__(self, model: Model, prompt: Sequence[int], options: BeamOptions):
        self.model = model
        self.prompt = tuple(prompt)
        self._options = options
        self.search = BeamSearch(settings=options.settings(model))
        self._check_length()
        self._round = 0
        self._following: dict[str, dict[int, float]] = {}
        self._open: set[str] = set()

    def _check_length(self) -> None:
        length, wanted, most = len(self.prompt), self._options.max_tokens, self.model.max_model_len
        if not length:
            raise InvalidRequest("prompt must hold at least one token", param="prompt")
        if length + wanted > most:
            message = (
                f"max_tokens is {wanted}, and the prompt has {length} tokens; this model's context is {most} tokens"
            )
            raise ContextLengthExceeded(message, param="max_tokens")

    def _names(self) -> list[str]:
        return [f"{self._round}-{i}" for i in range(len(self.search.running))]

    def requests(self) -> list[pb.SessionRequest]:
        """One for each beam. Empty where the search is over."""
        names = self._names()
        self._open, self._following = set(names), {}
        return [self._request(name, beam) for name, beam in zip(names, self.search.running, strict=True)]

    def _request(self, name: str, beam: Hypothesis) -> pb.SessionRequest:
        sampling = pb.Sampling(temperature=0, max_tokens=1, ignore_eos=True, logprobs=self.search.settings.alternatives)
        request = pb.GenerateRequest(request_id=name, model=self.model.id, sampling=sampling, return_tokens=True)
        request.prompt_tokens.ids.extend((*self.prompt, *beam.tokens))
        return pb.SessionRequest(start=request)

    def take(self, response: pb.SessionResponse) -> bool:
        """Whether the round is over. Raises the OctavoError of a request that failed."""
        for event in response.events:
            if event.HasField("error"):
                raise error_from_pb(event.error)
            for chunk in event.response.chunks:
                for row in chunk.logprobs:
                    self._following[event.request_id] = _alternatives(row)
            if event.done:
                self._open.discard(event.request_id)
        return not self._open

    def end(self) -> None:
        """The round is over: the search advances by what it brought. Raises Internal where that is not all that was asked for."""
        if len(self._following) < len(self.search.running):
            raise Internal("the router gave no log-probabilities")
        self.search.advance([self._following[name] for name in self._names()])
        self._round += 1

    @property
    def outcome(self) -> tuple[Hypothesis, ...]:
        """Of a search that is over, as many as are wanted."""
        return tuple(self.search.finished[: self._options.num_return])

    def parts(self) -> list[Tokens]:
        """What `result` wants the texts of: the prompt, then of each outcome the prompt with it, and it alone."""
        shown = [self._shown(one) for one in self.outcome]
        return [self.prompt, *((*self.prompt, *tokens) for tokens in shown), *shown]

    def result(self, texts: Sequence[str]) -> BeamResult:
        """With the texts of `parts`. How a token is written may depend on those before it, so a text is what follows the prompt's."""
        prompt, count = texts[0], len(self.outcome)
        pairs = zip(texts[1 : count + 1], texts[count + 1 :], strict=True)
        own = [whole.removeprefix(prompt) if whole.startswith(prompt) else alone for whole, alone in pairs]
        beams = tuple(self._beam(one, text) for one, text in zip(self.outcome, own, strict=True))
        return BeamResult(model=self.model.id, prompt_tokens=self.prompt, beams=beams)

    def _shown(self, one: Hypothesis) -> Tokens:
        return one.tokens[:-1] if self._stopped(one) else one.tokens

    def _stopped(self, one: Hypothesis) -> bool:
        return one.tokens[-1] in self.search.settings.eos_token_ids

    def _beam(self, one: Hypothesis, text: str) -> Beam:
        reason = "stop" if self._stopped(one) else "length"
        return Beam(text=text, tokens=one.tokens, logprob=one.logprob, score=one.score, finish_reason=reason)


def _alternatives(row: pb.TokenLogprobs) -> dict[int, float]:
    return {one.token: one.logprob for one in row.top}
