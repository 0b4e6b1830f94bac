"""One generation as a sequence of responses: the seed rides in the first, the usage in the last."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from protos import inference_pb2 as pb
from router.edge.collect import Collector
from router.edge.gate import Gate
from router.edge.grpc import wire
from router.edge.record import recorded
from router.request import Piece
from router.service import Generation
from router.tenancy.caller import Caller
from shared.errors import Internal

PROMPT_ROWS = 512  # in a message: with 20 alternatives each, some hundred kilobytes


class Answer:
    """Feed it every flush of `generation`, then ask for `last`.

    What the final flush gives is held until then, so that it carries the usage.
    """

    def __init__(self, generation: Generation, request: pb.GenerateRequest, choices: int):
        self._generation = generation
        self.rates = generation.rates
        self._return_tokens = request.return_tokens
        self._collector = Collector() if request.whole else None
        self._open = set(range(choices))
        self._prompt_told = False
        self._first = True
        self._held: pb.GenerateResponse | None = None

    def take(self, pieces: Sequence[Piece]) -> Iterator[pb.GenerateResponse]:
        """The responses to send now, if there are any, each made when the one before it was sent."""
        yield from self._prompt(pieces)
        self._open -= {piece.index for piece in pieces if piece.ended is not None}
        told = filter(self._tells, self._tellable(pieces))
        chunks = [wire.piece_to_pb(piece, return_tokens=self._return_tokens) for piece in told]
        if chunks and self._open:
            yield self._respond(chunks)
        elif chunks:
            self._held = self._respond(chunks)

    def _prompt(self, pieces: Sequence[Piece]) -> Iterator[pb.GenerateResponse]:
        """The prompt's log-probabilities, with the first pieces where they were asked, before any chunk."""
        prompt = next((piece.prompt for piece in pieces if piece.prompt), None)
        if prompt is None or self._prompt_told:
            return
        self._prompt_told = True
        rows = (None, *prompt.rows)
        for start in range(0, len(rows), PROMPT_ROWS):
            response = self._respond([])
            response.prompt_logprobs.extend(wire.prompt_rows_to_pb(rows[start : start + PROMPT_ROWS]))
            yield response

    def last(self) -> pb.GenerateResponse:
        """The response that ends the answer. Raises Internal where a choice has not ended."""
        if self._open:
            raise Internal("the generation ended before all of its choices")
        return self._with_usage(self._held or self._respond([]))

    def cancelled(self) -> pb.GenerateResponse:
        """The response that ends an answer which its caller cancelled."""
        ends = self._held or self._respond(wire.cancelled_to_pb(sorted(self._open)))
        return self._with_usage(ends)

    def _tellable(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if self._collector is None:
            return pieces
        whole = (self._collector.add(piece) for piece in pieces)
        return [piece for piece in whole if piece is not None]

    def _tells(self, piece: Piece) -> bool:
        """Whether the caller would learn anything: a held-back character or stop string makes pieces without text."""
        tokens = self._return_tokens and piece.tokens
        return bool(piece.text or piece.logprobs or piece.ended or tokens)

    def _respond(self, chunks: Sequence[pb.Chunk]) -> pb.GenerateResponse:
        first, self._first = self._first, False
        return wire.response_to_pb(self._generation, chunks, first=first)

    def _with_usage(self, response: pb.GenerateResponse) -> pb.GenerateResponse:
        response.usage.CopyFrom(wire.usage_to_pb(self._generation.usage))
        return response


def cancelled_unopened(request: pb.GenerateRequest, choices: int) -> pb.GenerateResponse:
    """The answer of a request that its caller cancelled before it was admitted."""
    chunks = wire.cancelled_to_pb(range(choices))
    return pb.GenerateResponse(model=request.model, chunks=chunks, usage=pb.Usage())


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a call brings beside its messages: who calls, its trace, and the seconds that are left to it (None: all).

    `caller` is asked for each request anew: a stream may outlive a key. It raises Unauthenticated.
    """

    caller: Callable[[], Caller]
    traceparent: str
    remaining: Callable[[], float | None]


async def answer_to(
    gate: Gate,
    request: pb.GenerateRequest,
    origin: Origin,
    send: Callable[[pb.GenerateResponse], Awaitable[None]],
    opened: Callable[[Answer], None] = lambda _: None,
) -> pb.GenerateResponse:
    """Sends all responses but the last one, which it returns. Raises InvalidRequest, and what the service raises."""
    with recorded("Generate", request_id=request.request_id, traceparent=origin.traceparent) as record:
        caller = origin.caller()
        await gate.door.enter(caller)
        parsed = wire.request_from_pb(
            request, caller=caller, timeout=origin.remaining(), traceparent=record.traceparent
        )
        async with gate.open(parsed) as generation:
            record.request_id = request.request_id or generation.id
            answer = Answer(generation, request, parsed.n)
            opened(answer)
            async for pieces in generation:
                for response in answer.take(pieces):
                    await send(response)
            record.status = "OK"
            return answer.last()
