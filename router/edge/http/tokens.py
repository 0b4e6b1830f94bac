"""/tokenize and /detokenize, in vLLM's shapes, at its paths."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from router.edge.bounds import MAX_DETOKENIZED, checked_chat
from router.edge.gate import Gate
from router.edge.http.body import Bodies, json_route
from router.edge.http.chat import Messages, chat_prompt
from router.edge.http.fields import FirstFault
from router.edge.http.generate import error_docs
from router.edge.http.refused import unsupported
from router.request import Prompt, TextPrompt
from shared.errors import InvalidRequest

# Of vLLM's fields, those that would change the answer.
_UNSERVED = ("chat_template", "chat_template_kwargs", "continue_final_message", "return_token_strs", "tools")


class TokenizeBody(BaseModel):
    """Either a text or a conversation."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = Field(None, description="A served name; may be left out where one model is served.")
    prompt: str | None = Field(None, description="A text.")
    messages: Messages | None = Field(None, description="A conversation, rendered by the model's own template.")
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's own. Default true for a text, false for a conversation."
    )
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's turn. Default true.")


class DetokenizeBody(BaseModel):
    """Token ids."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, description="A served name; may be left out where one model is served.")
    tokens: Annotated[list[int], FirstFault] = Field(
        max_length=MAX_DETOKENIZED, description=f"Up to {MAX_DETOKENIZED} token ids."
    )


class Tokens(TypedDict):
    """What a text or a conversation is to the model."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(TypedDict):
    """What token ids say."""

    prompt: str


def _prompt(body: TokenizeBody) -> Prompt:
    """Raises InvalidRequest naming what is missing, too much, or not served."""
    extra: dict[str, Any] = body.model_extra or {}
    for name in filter(extra.get, _UNSERVED):
        raise unsupported(name)
    if body.prompt is not None and body.messages is not None:
        raise InvalidRequest("give prompt or messages, not both", param="messages")
    if body.messages is not None:
        return checked_chat(chat_prompt(body.messages, body.add_generation_prompt), "messages")
    if body.prompt is None:
        raise InvalidRequest(
            "one of prompt and messages is required", param="prompt", code="missing_required_parameter"
        )
    return TextPrompt(text=body.prompt)


def routes(gate: Gate, bodies: Bodies) -> APIRouter:
    """POST /tokenize and /detokenize."""
    router = APIRouter(tags=["tokens"], route_class=json_route(bodies))

    @router.post("/tokenize", responses=error_docs(400, 401, 403, 404, 413, 415, 429))
    async def tokenize(body: TokenizeBody, request: Request) -> Tokens:
        """The token ids of a text or a conversation."""
        prompt, model, caller = _prompt(body), body.model or "", request.state.caller
        param = "prompt" if isinstance(prompt, TextPrompt) else "messages"
        tokens = await gate.tokenize(model, prompt, body.add_special_tokens, caller=caller, param=param)
        return {
            "count": len(tokens),
            "max_model_len": gate.model(model, caller).max_model_len,
            "tokens": list(tokens),
        }

    @router.post("/detokenize", responses=error_docs(400, 401, 403, 404, 413, 415, 429))
    async def detokenize(body: DetokenizeBody, request: Request) -> Text:
        """The text of token ids, special tokens as they are spelled."""
        text = await gate.detokenize(body.model or "", body.tokens, caller=request.state.caller)
        return {"prompt": text}

    return router
