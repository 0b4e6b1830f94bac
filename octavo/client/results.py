"""What a caller gets, and how it is put together from the stream of responses."""

from collections.abc import Sequence
from dataclasses import dataclass

from protos import inference_pb2 as pb

_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length", pb.FINISH_REASON_CANCELLED: "cancelled"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and its own bytes (which need not be whole characters)."""

    token: int
    logprob: float
    text: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """One position: the token that stands there, sampled or the prompt's own, and the alternatives by descending log-probability."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """A piece of one choice. `finish_reason` ("stop", "length") is set in its last piece, with the stop string or token that did it."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    finish_reason: str | None = None
    stop_string: str | None = None
    stop_token: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One choice, whole. `tokens` only where return_tokens was asked, `logprobs` where logprobs was."""

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    finish_reason: str | None
    stop_string: str | None
    stop_token: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts: `completion_tokens` over all choices, `cached_tokens` of the prompt."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A whole answer. `seed` is the one in force: sent again, it gives the same tokens.

    `prompt_logprobs`, where asked, has an entry a token of the prompt; the first token follows nothing, and has None.
    """

    id: str
    model: str
    seed: int
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[Logprobs | None, ...] = ()

    @property
    def text(self) -> str:
        """The first choice's."""
        return self.choices[0].text


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model that some worker serves. `created` is in Unix seconds; sequences end at `eos_token_ids`.

    An adapter's `parent` is its base.
    """

    id: str
    created: int
    max_model_len: int
    workers: int
    eos_token_ids: tuple[int, ...] = ()
    parent: str = ""


def _logprob(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token=message.token, logprob=message.logprob, text=message.text)


def _logprobs(message: pb.TokenLogprobs) -> Logprobs:
    return Logprobs(sampled=_logprob(message.sampled), top=tuple(map(_logprob, message.top)))


def _delta(chunk: pb.Chunk) -> Delta:
    stopped_by = chunk.WhichOneof("stopped_by")
    return Delta(
        index=chunk.index,
        text=chunk.text,
        tokens=tuple(chunk.tokens),
        logprobs=tuple(map(_logprobs, chunk.logprobs)),
        finish_reason=_REASONS.get(chunk.finish_reason),
        stop_string=chunk.stop_string if stopped_by == "stop_string" else None,
        stop_token=chunk.stop_token if stopped_by == "stop_token" else None,
    )


def models(response: pb.ListModelsResponse) -> tuple[Model, ...]:
    """Every served model."""
    return tuple(
        Model(
            id=card.id,
            created=card.created,
            max_model_len=card.max_model_len,
            workers=card.workers,
            eos_token_ids=tuple(card.eos_token_ids),
            parent=card.parent,
        )
        for card in response.models
    )


def _joined(index: int, deltas: Sequence[Delta]) -> Choice:
    last = deltas[-1]
    return Choice(
        index=index,
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(row for delta in deltas for row in delta.logprobs),
        finish_reason=last.finish_reason,
        stop_string=last.stop_string,
        stop_token=last.stop_token,
    )


class Assembly:
    """The facts of one generation as its responses arrive. `seed` is known from the first on, `usage` from the last."""

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.seed: int | None = None
        self.usage: Usage | None = None
        self.prompt_logprobs: list[Logprobs | None] = []
        self._deltas: dict[int, list[Delta]] = {}

    def add(self, response: pb.GenerateResponse) -> tuple[Delta, ...]:
        """The deltas of one response."""
        self.id, self.model = response.id or self.id, response.model or self.model
        if response.HasField("seed"):
            self.seed = response.seed
        if response.HasField("usage"):
            counts = response.usage
            self.usage = Usage(
                prompt_tokens=counts.prompt_tokens,
                completion_tokens=counts.completion_tokens,
                cached_tokens=counts.cached_tokens,
            )
        rows = response.prompt_logprobs
        self.prompt_logprobs += [_logprobs(row) if row.HasField("sampled") else None for row in rows]
        deltas = tuple(map(_delta, response.chunks))
        for delta in deltas:
            self._deltas.setdefault(delta.index, []).append(delta)
        return deltas

    def completion(self) -> Completion:
        """All that came, joined. Counts are zero where the stream was left before its end."""
        choices = tuple(_joined(index, self._deltas[index]) for index in sorted(self._deltas))
        usage = self.usage or Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=0)
        return Completion(
            id=self.id,
            model=self.model,
            seed=self.seed or 0,
            choices=choices,
            usage=usage,
            prompt_logprobs=tuple(self.prompt_logprobs),
        )
