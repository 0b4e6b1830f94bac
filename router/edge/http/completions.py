"""/v1/completions: its body to requests, pieces to its chunks."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from router.edge.http import answers, logprobs
from router.edge.http.fields import (
    Caller,
    FirstFault,
    Integers,
    SamplingFields,
    Strings,
    request_of,
    sampling_of,
)
from router.request import GenerateRequest, Piece, Prompt, TextPrompt, TokenPrompt
from shared.errors import InvalidRequest

MAX_PROMPTS = 128
MAX_CHOICES = 512  # over all prompts

Prompts = Annotated[
    str | Strings | Integers | Annotated[list[Integers], FirstFault],
    Field(union_mode="left_to_right"),
]


class CompletionBody(SamplingFields):
    """The body of a completion."""

    prompt: Prompts = Field(description="A text, token ids, or a list of up to 128 of either.")
    logprobs: int | None = Field(
        None,
        description="Tell each token's log-probability and that of 0 to 20 alternatives.",
    )


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


def requests_of(body: CompletionBody, caller: Caller) -> tuple[GenerateRequest, ...]:
    """One request a prompt. Raises InvalidRequest naming the parameter at fault."""
    prompts = _prompts(body.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt takes at most {MAX_PROMPTS} prompts", param="prompt")
    if len(prompts) * body.choices() > MAX_CHOICES and len(prompts) > 1:
        raise InvalidRequest(f"prompts times n may be {MAX_CHOICES}", param="n")
    sampling = sampling_of(body, max_tokens=body.max_tokens, logprobs=body.logprobs)
    return tuple(request_of(body, caller, prompt, sampling, prompt_param="prompt") for prompt in prompts)


class CompletionShape:
    """Completions' choices, whose chunks look like whole ones."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, *, with_logprobs: bool):
        self._with_logprobs = with_logprobs
        self._offsets: defaultdict[int, logprobs.Offsets] = defaultdict(logprobs.Offsets)

    def _logprobs(self, piece: Piece) -> answers.CompletionLogprobs | None:
        return logprobs.completion(piece.logprobs, self._offsets[piece.index]) if self._with_logprobs else None

    def whole(self, choice: Piece) -> answers.CompletionChoice:
        """A whole choice."""
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice),
            "finish_reason": answers.finish_reason(choice.ended) if choice.ended else None,
        }

    def chunk(self, piece: Piece) -> answers.CompletionChoice | None:
        """Text, log-probabilities, or the end."""
        if not (piece.text or piece.logprobs or piece.ended):
            return None
        told = self.whole(piece)
        return told if piece.logprobs else {**told, "logprobs": None}
