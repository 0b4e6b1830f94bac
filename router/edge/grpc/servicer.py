"""octavo.v1.Inference over the gate: thin, typed errors as rich statuses, nothing left running when a call ends."""

from collections.abc import AsyncIterator, Sequence
from functools import partial

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from router.edge.gate import Gate
from router.edge.grpc import wire
from router.edge.grpc.answer import Answer, Origin, answer_to
from router.edge.grpc.calls import Context, caller_of, metadata, told
from router.edge.grpc.session import Session
from router.request import TextPrompt
from router.tenancy.caller import Caller


class InferenceServicer(pb_grpc.InferenceServicer):
    """A cancelled call cancels its handler, which closes the generation: the gate sees to that."""

    def __init__(self, gate: Gate):
        self._gate = gate

    def _caller(self, context: Context) -> Caller:
        """Raises Unauthenticated."""
        return caller_of(self._gate, context)

    def _origin(self, context: Context) -> Origin:
        traceparent = next(iter(metadata(context, "traceparent")), "")
        caller = partial(self._caller, context)
        return Origin(caller=caller, traceparent=traceparent, remaining=context.time_remaining)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        """Written message by message: a generator that waits in `yield` would not be closed by a cancellation."""

        def opened(answer: Answer) -> None:
            if answer.rates is not None:
                context.set_trailing_metadata(tuple(answer.rates.headers().items()))

        async with told(context):
            await context.write(await answer_to(self._gate, request, self._origin(context), context.write, opened))

    async def Session(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Context
    ) -> None:
        """See router/edge/grpc/session.py."""

        async def write(events: Sequence[pb.SessionEvent]) -> None:
            await context.write(pb.SessionResponse(events=events))

        async with told(context):
            self._caller(context)  # a stranger is told at once, whatever it sends
            await Session(self._gate, self._origin(context)).run(request_iterator, write)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Token ids of a text or a rendered chat."""
        async with told(context):
            caller = self._caller(context)
            prompt = wire.tokenize_prompt_from_pb(request)
            special = request.add_special_tokens if request.HasField("add_special_tokens") else None
            param = "text" if isinstance(prompt, TextPrompt) else "chat.messages"
            tokens = await self._gate.tokenize(request.model, prompt, special, caller=caller, param=param)
            length = self._gate.model(request.model, caller).max_model_len
            return pb.TokenizeResponse(tokens=tokens, max_model_len=length)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """The text of token ids."""
        async with told(context):
            caller, tokens = self._caller(context), wire.tokens_from_pb(request)
            text = await self._gate.detokenize(request.model, tokens, request.skip_special_tokens, caller=caller)
            return pb.DetokenizeResponse(text=text)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Every served model that the caller sees."""
        async with told(context):
            cards = self._gate.models(self._caller(context))
            return pb.ListModelsResponse(models=[wire.card_to_pb(card) for card in cards])
