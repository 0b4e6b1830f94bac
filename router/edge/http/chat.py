"""/v1/chat/completions: its body to requests, pieces to its chunks."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from router.edge.bounds import MAX_TURNS, turn
from router.edge.http import answers, fields, logprobs
from router.edge.http.errors import dotted
from router.edge.http.fields import (
    FirstFault,
    Origin,
    SamplingFields,
    request_of,
    sampling_of,
)
from router.request import ChatPrompt, GenerateRequest, Message, Piece
from shared.errors import InvalidRequest

MAX_PARTS = 4_096  # of all messages' contents


class ContentPart(BaseModel):
    """A piece of a message's content. Only text is served."""

    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None


Parts = Annotated[list[ContentPart], FirstFault, Field(max_length=MAX_PARTS)]


class ChatMessage(BaseModel):
    """One turn. A developer's message is given to the model as the system's."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str = Field(description="system, developer, user, assistant, or tool, as the model's template accepts.")
    content: Annotated[str | Parts | None, Field(union_mode="left_to_right")] = None
    name: str | None = None


def _few_parts(messages: object) -> object:
    """Lets pass whatever has no more than MAX_PARTS pieces of content in all."""
    if isinstance(messages, list):
        contents = (message.get("content") for message in messages[:MAX_TURNS] if isinstance(message, dict))
        if sum(len(content) for content in contents if isinstance(content, list)) > MAX_PARTS:
            raise PydanticCustomError("too_long", "the messages have more than {most} parts", {"most": MAX_PARTS})
    return messages


Messages = Annotated[list[ChatMessage], FirstFault, Field(max_length=MAX_TURNS), BeforeValidator(_few_parts)]


class ChatBody(SamplingFields):
    """The body of a chat completion."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, description="The most tokens to generate; max_tokens' new name.")
    logprobs: bool | None = Field(None, description="Tell each token's log-probability. Default false.")
    top_logprobs: int | None = Field(None, description="Alternatives a token, 0 to 20; needs logprobs.")
    add_generation_prompt: bool | None = Field(None, description="Extension. Open the assistant's turn. Default true.")


def _part_text(part: ContentPart, path: tuple[int | str, ...]) -> str:
    if part.type != "text":
        name = dotted((*path, "type"))
        raise InvalidRequest(f"{name}: content of type {part.type[:50]!r} is not supported", param=name)
    if part.text is None:
        name = dotted((*path, "text"))
        raise InvalidRequest(f"{name} is required", param=name, code="missing_required_parameter")
    return part.text


def _content(message: ChatMessage, path: tuple[int | str, ...]) -> str:
    match message.content:
        case str(text):
            return text
        case None:
            name = dotted((*path, "content"))
            raise InvalidRequest(f"{name} is required", param=name, code="missing_required_parameter")
        case parts:
            return "".join(_part_text(part, (*path, "content", i)) for i, part in enumerate(parts))


def _message(message: ChatMessage, index: int) -> Message:
    path = ("messages", index)
    for part in ("tool_calls", "function_call", "audio"):
        if (message.model_extra or {}).get(part):
            name = dotted((*path, part))
            raise InvalidRequest(f"{name} is not supported yet", param=name, code="unsupported_parameter")
    return turn(message.role, _content(message, path), message.name or "", dotted(path))


def _max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ; give one",
            param="max_completion_tokens",
        )
    return old if new is None else new


def _alternatives(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def requests_of(body: ChatBody, origin: Origin) -> tuple[GenerateRequest, ...]:
    """The one request of a chat. Raises InvalidRequest naming the parameter at fault."""
    body.check_prompt_logprobs()
    sampling = sampling_of(
        body, max_tokens=_max_tokens(body), logprobs=_alternatives(body), prompt_logprobs=body.prompt_logprobs
    )
    prompt = chat_prompt(body.messages, body.add_generation_prompt)
    return (request_of(body, origin, prompt, sampling, prompt_param="messages"),)


def chat_prompt(given: Sequence[ChatMessage], add_generation_prompt: bool | None) -> ChatPrompt:
    """The conversation. Raises InvalidRequest naming the part at fault."""
    messages = tuple(_message(message, i) for i, message in enumerate(given))
    return ChatPrompt(messages=messages, add_generation_prompt=add_generation_prompt is not False)


def names_of(body: ChatBody) -> dict[str, str]:
    """What this body calls the parameters that the router's inside names otherwise."""
    limit = {} if body.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
    return {"logprobs": "top_logprobs", **fields.NAMES, **limit}


class ChatShape:
    """Chat's choices; the first chunk of each carries the role."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *, logprobs: bool, prompt_logprobs: int | None):
        self._with_logprobs = logprobs
        self._prompt_alternatives = prompt_logprobs
        self._begun: set[int] = set()

    def _logprobs(self, piece: Piece) -> answers.ChatLogprobs | None:
        return logprobs.chat(piece.logprobs) if self._with_logprobs else None

    def above(self, choices: Sequence[Piece]) -> Mapping[str, Any]:
        """The prompt's log-probabilities, which all choices share."""
        rows, alternatives = choices[0].prompt, self._prompt_alternatives
        if rows is None or alternatives is None:
            return {}
        return {"prompt_logprobs": logprobs.of_prompt(rows, alternatives)}

    def select(self, choices: Sequence[Piece]) -> Sequence[Piece]:
        """All."""
        return choices

    def whole(self, choice: Piece) -> answers.ChatChoice:
        """A whole choice."""
        assert choice.ended is not None
        message: answers.AssistantMessage = {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
        }
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice),
            "finish_reason": answers.finish_reason(choice.ended),
        }

    def chunk(self, piece: Piece) -> answers.ChunkChoice | None:
        """Text, log-probabilities, or the end."""
        if not (piece.text or piece.logprobs or piece.ended):
            return None
        return {
            "index": piece.index,
            "delta": self._delta(piece),
            "logprobs": self._logprobs(piece) if piece.logprobs else None,
            "finish_reason": answers.finish_reason(piece.ended) if piece.ended else None,
        }

    def _delta(self, piece: Piece) -> answers.Delta:
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            return {"role": "assistant", "content": piece.text}
        return {"content": piece.text} if piece.text or not piece.ended else {}
