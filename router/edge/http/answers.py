"""The shapes of OpenAI's answers. Source: the OpenAPI document of OpenAI's API, version 2.3.0."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from router.request import Ended

FinishReason = Literal["stop", "length"]


def finish_reason(ended: Ended) -> FinishReason:
    """OpenAI's word for it."""
    return "stop" if ended.reason == "stop" else "length"


class PromptDetails(TypedDict):
    """`cached_tokens`: prompt tokens found in the prefix cache."""

    cached_tokens: int


class Usage(TypedDict):
    """Token counts over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(TypedDict):
    """A token that could have been at this place. `bytes` need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token at this place, and the likeliest ones by descending log-probability."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """One entry a token."""

    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(TypedDict):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One whole answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class Delta(TypedDict):
    """Some more of an answer. The role comes with the first chunk of each choice."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChunkChoice(TypedDict):
    """Some of one answer; finish_reason is null but in its last chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class CompletionLogprobs(TypedDict):
    """One entry a token in each list; `text_offset` counts characters from the start of the choice's text.

    With echo, the prompt's first token has null for its values: it follows nothing.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """A token at a place of the prompt; `rank` counts from 1, and is null where the token is not among the alternatives asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; null for the first token, which follows nothing


class CompletionChoice(TypedDict):
    """One completion, or, in a stream, some of one (then finish_reason is null but in its last chunk)."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_logprobs: NotRequired[PromptLogprobs]


class _Answer(TypedDict):
    """`octavo_resumed` is there once the answer went on at a worker that works with other numbers than the one that was lost."""

    octavo_resumed: NotRequired[Literal["inexact"]]
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Answer):
    """A whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChatCompletionChunk(_Answer):
    """One event of a streamed chat. With include_usage, usage is null but in the last one, which has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]


class Completion(_Answer):
    """A whole completion, or one event of a streamed one (usage then as in chat chunks)."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class Model(TypedDict):
    """A served model. `max_model_len` (an extension) is in tokens, prompt and output together. Of an adapter, `parent` is its base."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: NotRequired[str]


class ModelList(TypedDict):
    """Every served model."""

    object: Literal["list"]
    data: list[Model]


class ErrorFields(TypedDict):
    """What went wrong; `param` names the field at fault, `code` is stable and machine-readable."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(TypedDict):
    """The body of every answer that is not 2xx."""

    error: ErrorFields
