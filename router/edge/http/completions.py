"""/v1/completions: its body to requests, pieces to its chunks."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from router.edge.http import answers, logprobs
from router.edge.http.fields import (
    Integers,
    Origin,
    SamplingFields,
    request_of,
    sampling_of,
)
from router.request import GenerateRequest, Piece, Prompt, SamplingOptions, TextPrompt, TokenPrompt
from shared.errors import InvalidRequest

MAX_PROMPTS = 128
MAX_CHOICES = 512  # over all prompts
MAX_CANDIDATES = 64  # of one prompt

_Several = Field(fail_fast=True, max_length=MAX_PROMPTS)
Prompts = Annotated[
    str | Annotated[list[str], _Several] | Integers | Annotated[list[Integers], _Several],
    Field(union_mode="left_to_right"),
]


class CompletionBody(SamplingFields):
    """The body of a completion."""

    prompt: Prompts = Field(description="A text, token ids, or a list of up to 128 of either.")
    logprobs: int | None = Field(
        None,
        description="Tell each token's log-probability and that of 0 to 20 alternatives.",
    )
    echo: bool | None = Field(
        None,
        description="Begin each choice with its prompt. Then max_tokens may be 0, for the prompt alone. Default false.",
    )
    best_of: int | None = Field(
        None,
        description="Generate so many (n to 64) and tell the n of the highest mean log-probability. Not in streams. Default n.",
    )

    def candidates(self) -> int:
        """Choices generated a prompt. Raises InvalidRequest for a best_of that cannot be served."""
        if self.best_of is None or self.best_of == self.choices():
            return self.choices()
        if not self.choices() <= self.best_of <= MAX_CANDIDATES:
            raise InvalidRequest(f"best_of must be between n and {MAX_CANDIDATES}", param="best_of")
        if self.stream:
            raise InvalidRequest("best_of is not available in a stream", param="best_of")
        return self.best_of


def _prompt(value: str | Sequence[int]) -> Prompt:
    return TextPrompt(text=value) if isinstance(value, str) else TokenPrompt(tokens=value)


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    if isinstance(given, str):
        return [_prompt(given)]
    if not given:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    if isinstance(given[0], int):
        return [TokenPrompt(tokens=given)]
    return [_prompt(each) for each in given]


def requests_of(body: CompletionBody, origin: Origin) -> tuple[GenerateRequest, ...]:
    """One request a prompt, each of `candidates` choices. Raises InvalidRequest naming the parameter at fault."""
    prompts, candidates = _prompts(body.prompt), body.candidates()
    if len(prompts) * candidates > MAX_CHOICES and len(prompts) > 1:
        param = "n" if candidates == body.choices() else "best_of"
        raise InvalidRequest(f"prompts times {param} may be at most {MAX_CHOICES}", param=param)
    body.check_prompt_logprobs()
    sampling = _sampling(body, ranked=candidates != body.choices())
    made = [request_of(body, origin, prompt, sampling, prompt_param="prompt") for prompt in prompts]
    nothing = body.max_tokens == 0
    return tuple(replace(each, n=candidates, echo=bool(body.echo), prompt_only=nothing) for each in made)


def _sampling(body: CompletionBody, *, ranked: bool) -> SamplingOptions:
    """`ranked`: choices are told apart by their log-probabilities, so these are needed, asked for or not."""
    if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
        raise InvalidRequest("max_tokens must be at least 1 without echo", param="max_tokens")
    if body.max_tokens == 0 and body.min_tokens:
        raise InvalidRequest("min_tokens must not be larger than max_tokens", param="min_tokens")
    logprobs = 0 if ranked and body.logprobs is None else body.logprobs
    max_tokens = 1 if body.max_tokens == 0 else body.max_tokens
    return sampling_of(body, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=_prompt_rows(body))


def _prompt_rows(body: CompletionBody) -> int | None:
    """Alternatives of the prompt's tokens: as many as the extension or an echo with log-probabilities tells."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((each for each in asked if each is not None), default=None)


def ranked(choices: Sequence[Piece], candidates: int, n: int) -> list[Piece]:
    """Of each prompt's candidates (numbered prompt by prompt), the `n` of the highest mean log-probability, renumbered."""
    kept: list[Piece] = []
    for start in range(0, len(choices), candidates):
        best = sorted(choices[start : start + candidates], key=_mean, reverse=True)[:n]
        kept += best
    return [replace(choice, index=index) for index, choice in enumerate(kept)]


def _mean(choice: Piece) -> float:
    rows = choice.logprobs
    return sum(row.sampled.logprob for row in rows) / len(rows) if rows else -math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What of a body says how its choices are told. A shape lives as long as its stream; a body may be large, unknown fields and all."""

    n: int
    candidates: int
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None


def told_of(body: CompletionBody) -> Told:
    """The shape's part of a body."""
    return Told(
        n=body.choices(),
        candidates=body.candidates(),
        echo=bool(body.echo),
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )


class CompletionShape:
    """Completions' choices, whose chunks look like whole ones."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, told: Told):
        self._told = told
        self._offsets: defaultdict[int, logprobs.Offsets] = defaultdict(logprobs.Offsets)

    def _logprobs(self, piece: Piece) -> answers.CompletionLogprobs | None:
        if self._told.logprobs is None:
            return None
        if piece.echo:
            self._offsets[piece.index] = logprobs.Offsets(len(piece.echo))
        offsets = self._offsets[piece.index]
        rows = logprobs.completion(piece.logprobs, offsets)
        if piece.prompt is None or not self._told.echo:
            return rows
        return logprobs.joined(logprobs.echoed(piece.prompt, piece.echo, self._told.logprobs), rows)

    def select(self, choices: Sequence[Piece]) -> Sequence[Piece]:
        """The best of the candidates."""
        candidates, n = self._told.candidates, self._told.n
        return choices if candidates == n else ranked(choices, candidates, n)

    def above(self, choices: Sequence[Piece]) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def whole(self, choice: Piece) -> answers.CompletionChoice:
        """A whole choice."""
        told: answers.CompletionChoice = {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice),
            "finish_reason": answers.finish_reason(choice.ended) if choice.ended else None,
        }
        if choice.prompt is not None and self._told.prompt_logprobs is not None:
            told["prompt_logprobs"] = logprobs.of_prompt(choice.prompt, self._told.prompt_logprobs)
        return told

    def chunk(self, piece: Piece) -> answers.CompletionChoice | None:
        """Text, log-probabilities, or the end."""
        if not (piece.text or piece.logprobs or piece.ended):
            return None
        told = self.whole(piece)
        return told if piece.logprobs or piece.prompt else {**told, "logprobs": None}
