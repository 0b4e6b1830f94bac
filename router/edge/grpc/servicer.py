"""octavo.v1.Inference over the gate: thin, typed errors as rich statuses, nothing left running when a call ends."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc.aio

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from router.edge.credentials import API_KEY, AUTHORIZATION, credentials_of
from router.edge.gate import Gate
from router.edge.grpc import wire
from router.edge.grpc.answer import Answer, Origin, answer_to
from router.edge.grpc.session import Session
from router.request import TextPrompt
from router.tenancy.caller import Caller
from shared import rpc
from shared.errors import Internal, OctavoError

_LOG = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def _told(context: _Context) -> AsyncIterator[None]:
    """Ends the call with the rich status of whatever the block raises."""
    try:
        yield
    except OctavoError as error:
        await rpc.abort(context, error)
    except grpc.aio.AbortError:
        raise
    except Exception:  # noqa: BLE001 - logged, and told as Internal
        _LOG.exception("a call failed")
        await rpc.abort(context, Internal("internal error"))


def _metadata(context: _Context, name: str) -> list[str]:
    given = context.invocation_metadata() or ()
    return [value for key, value in given if key == name and isinstance(value, str)]


class InferenceServicer(pb_grpc.InferenceServicer):
    """A cancelled call cancels its handler, which closes the generation: the gate sees to that."""

    def __init__(self, gate: Gate):
        self._gate = gate

    def _caller(self, context: _Context) -> Caller:
        """Raises Unauthenticated."""
        credentials = credentials_of(_metadata(context, AUTHORIZATION), _metadata(context, API_KEY))
        return self._gate.authenticate(credentials)

    def _origin(self, context: _Context) -> Origin:
        traceparent = next(iter(_metadata(context, "traceparent")), "")
        caller = partial(self._caller, context)
        return Origin(caller=caller, traceparent=traceparent, remaining=context.time_remaining)

    async def Generate(self, request: pb.GenerateRequest, context: _Context) -> None:  # type: ignore[override]
        """Written message by message: a generator that waits in `yield` would not be closed by a cancellation."""

        def opened(answer: Answer) -> None:
            if answer.rates is not None:
                context.set_trailing_metadata(tuple(answer.rates.headers().items()))

        async with _told(context):
            await context.write(await answer_to(self._gate, request, self._origin(context), context.write, opened))

    async def Session(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: _Context
    ) -> None:
        """See router/edge/grpc/session.py."""

        async def write(events: Sequence[pb.SessionEvent]) -> None:
            await context.write(pb.SessionResponse(events=events))

        async with _told(context):
            self._caller(context)  # a stranger is told at once, whatever it sends
            await Session(self._gate, self._origin(context)).run(request_iterator, write)

    async def Tokenize(self, request: pb.TokenizeRequest, context: _Context) -> pb.TokenizeResponse:
        """Token ids of a text or a rendered chat."""
        async with _told(context):
            caller = self._caller(context)
            prompt = wire.tokenize_prompt_from_pb(request)
            special = request.add_special_tokens if request.HasField("add_special_tokens") else None
            param = "text" if isinstance(prompt, TextPrompt) else "chat.messages"
            tokens = await self._gate.tokenize(request.model, prompt, special, caller=caller, param=param)
            length = self._gate.max_model_len(request.model, caller)
            return pb.TokenizeResponse(tokens=tokens, max_model_len=length)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: _Context) -> pb.DetokenizeResponse:
        """The text of token ids."""
        async with _told(context):
            caller, tokens = self._caller(context), wire.tokens_from_pb(request)
            text = await self._gate.detokenize(request.model, tokens, request.skip_special_tokens, caller=caller)
            return pb.DetokenizeResponse(text=text)

    async def ListModels(self, request: pb.ListModelsRequest, context: _Context) -> pb.ListModelsResponse:
        """Every served model that the caller sees."""
        async with _told(context):
            cards = self._gate.models(self._caller(context))
            return pb.ListModelsResponse(models=[wire.card_to_pb(card) for card in cards])
