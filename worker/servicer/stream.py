"""One router's stream: what its frames mean, and what it is told."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from protos import worker_pb2 as pb
from shared import rpc
from shared.errors import DeadlineExceeded, InvalidRequest, OctavoError, Overloaded
from shared.types import (
    AbortReason,
    AdapterLoad,
    Finished,
    FinishReason,
    Load,
    RejectCode,
    Rejected,
    TokenDelta,
    TokenRequest,
)
from shared.wire import worker as wire
from worker.adapters.errors import reject_code
from worker.servicer.acks import Acks
from worker.servicer.adapterfeed import AdapterFeed
from worker.servicer.assembly import Assembly, Partial, given
from worker.servicer.book import Book
from worker.servicer.bundle import Bundle
from worker.servicer.kvfeed import KvFeed
from worker.servicer.lobby import Lobby
from worker.servicer.outbound import Outbound
from worker.servicer.pacer import LoadPacer
from worker.servicer.presence import Presence
from worker.servicer.settings import StreamSettings

ENDS = {
    AbortReason.CLIENT: FinishReason.ABORTED,
    AbortReason.STOPPED: FinishReason.STOP,
    AbortReason.DEADLINE: FinishReason.DEADLINE,
}


class Desk(Protocol):
    """What a stream asks of the worker."""

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken."""

    @property
    def max_prompt(self) -> int:
        """Tokens; a longer prompt can never run here."""

    @property
    def numerics_id(self) -> str:
        """What the worker's numbers are computed with."""

    def submit(self, stream: int, request: TokenRequest) -> None:
        """Hand a request to the engine."""

    def abort(self, stream: int, handles: Sequence[int], reason: AbortReason) -> None:
        """End choices."""

    def request_snapshot(self, stream: int) -> None:
        """Have `RouterStream.snapshot` called."""

    def adapted(self, request: TokenRequest) -> TokenRequest | None:
        """The request with its adapter's version, which is held till `release`; None where that has to be found out. Raises
        OctavoErrors."""

    def find_adapter(self, request: TokenRequest, done: Callable[[OctavoError | None], None]) -> None:
        """Find it out, and tell what came of it, later."""

    def release(self, digest: bytes) -> None:
        """A request of this version has ended."""

    def prefetch(self, name: str, digest: bytes) -> None:
        """A request for this adapter may come."""

    def adapter_loads(self) -> tuple[AdapterLoad, ...]:
        """Requests of each adapter."""

    def load(self, stream: "RouterStream") -> Load:
        """The worker's account of itself, for this stream."""


class RouterStream:
    """`number` names it to the engine. `over` is set, once, to why the worker ends it; None is a good end."""

    def __init__(
        self,
        number: int,
        hello: pb.Hello,
        desk: Desk,
        *,
        kv: KvFeed | None,
        adapters: AdapterFeed | None,
        settings: StreamSettings,
        clock: Callable[[], float],
    ):
        self.number = number
        self.router_id = hello.router_id
        self.kv = kv
        self.adapters = adapters
        self.acks = Acks()
        self.book = Book(desk.release)
        self.over: asyncio.Future[OctavoError | None] = asyncio.get_running_loop().create_future()
        self.outbound = Outbound(
            make_load=self._load,
            next_kv=lambda: kv.next() if kv else None,
            next_adapters=lambda: adapters.next() if adapters else None,
        )
        self._desk = desk
        self._settings = settings
        self._clock = clock
        self._presence = Presence(settings, clock())
        self._assembly = Assembly(limit=settings.unfinished_submits)
        self._lobby = Lobby(clock)
        self._pacer = LoadPacer(settings, self.outbound.want_load)
        self._told: Load | None = None

    def end(self, error: OctavoError | None) -> None:
        """The worker ends the stream; the first reason counts."""
        if not self.over.done():
            self.over.set_result(error)

    def close(self, why: str) -> None:
        """The stream is over, whoever ended it."""
        self._pacer.stop()
        self._lobby.close()
        self.book.close(why)

    def look(self) -> None:
        """A regular look: a router that is silent, or takes nothing, is dropped."""
        now, settings = self._clock(), self._settings
        if self._presence.silent(now):
            self.end(DeadlineExceeded(f"the router was silent for {settings.silent_after:g} s"))
        if self._presence.stuck(now, self.outbound.undelivered):
            self.end(Overloaded(f"over {settings.undelivered} undelivered frames"))

    # ---- from the router

    def handle(self, frame: pb.Up) -> None:
        """Take a frame. Raises InvalidRequest where it breaks the protocol."""
        self._presence.heard(self._clock())
        if frame.ByteSize() > rpc.FRAME_LIMIT:
            raise InvalidRequest(f"a frame of {frame.ByteSize()} bytes, over {rpc.FRAME_LIMIT}")
        match frame.WhichOneof("frame"):
            case "submit":
                self._submit(frame.submit)
            case "submit_part":
                self._ready(self._assembly.part(frame.submit_part))
            case "abort":
                self._abort(*wire.abort_from_pb(frame.abort))
            case "ping":
                self.outbound.put_urgent(pb.Down(pong=pb.Pong(nonce=frame.ping.nonce)))
            case "snapshot_request":
                self._desk.request_snapshot(self.number)
            case "prefetch_adapter":
                self._desk.prefetch(frame.prefetch_adapter.name, frame.prefetch_adapter.digest)
            case other:
                raise InvalidRequest(f"unexpected frame: {other or 'unknown'}")

    def _submit(self, submit: pb.Submit) -> None:
        self.acks.came(submit.seq)
        partial = self._assembly.begin(submit)
        most = self._desk.max_prompt
        if submit.prompt_len > most:
            message = f"a prompt of {submit.prompt_len} tokens, where {most} fit with one of output"
            self._refuse(partial, RejectCode.TOO_LONG, message, "prompt_tokens")
        elif partial.longest > most + 1:
            message = f"prompt and given outputs have {partial.longest} tokens, where {most + 1} fit"
            self._refuse(partial, RejectCode.TOO_LONG, message, "choices.output_tokens")
        elif submit.numerics_id and submit.numerics_id != self._desk.numerics_id:
            message = "the given outputs were made with other numbers than this worker's"
            self._refuse(partial, RejectCode.NUMERICS, message, "numerics_id")
        self._ready(partial)

    def _ready(self, partial: Partial) -> None:
        if partial.missing or partial.void:
            return
        if self._desk.draining:
            self._refuse(partial, RejectCode.DRAINING, "the worker is draining")
            return
        outputs = {handle: output.tokens for handle, output in partial.outputs.items()}
        request = self._adapted(partial, wire.submit_from_pb(partial.submit, partial.prompt.tokens, outputs))
        if request is None:
            return
        self.book.begin(request)
        self._desk.submit(self.number, request)
        for handle, reason in partial.ended.items():
            self._desk.abort(self.number, (handle,), reason)

    def _adapted(self, partial: Partial, request: TokenRequest) -> TokenRequest | None:
        """With its adapter's version; None where it is refused, or waits in the lobby till that is known."""
        try:
            known = self._desk.adapted(self._lobby.aged(request))
        except OctavoError as error:
            self._no_adapter(partial, error)
            return None
        if known is None:
            self._desk.find_adapter(request, self._lobby.enter(partial, self._found))
        return known

    def _found(self, partial: Partial, error: OctavoError | None) -> None:
        if partial.void:
            return
        if error is None:
            self._ready(partial)
        else:
            self._no_adapter(partial, error)

    def _no_adapter(self, partial: Partial, error: OctavoError) -> None:
        self._refuse(partial, reject_code(error), error.message, "model")

    def _refuse(self, partial: Partial, code: RejectCode, message: str, param: str = "") -> None:
        self._void(partial)
        rejected = Rejected(seq=partial.submit.seq, code=code, message=message, param=param)
        self.outbound.put(Bundle(ends=(wire.reject_to_pb(rejected),)))

    def _void(self, partial: Partial) -> None:
        """It is answered: what is still to come of it says nothing any more."""
        partial.void = True
        for gathered in (partial.prompt, *partial.outputs.values()):
            gathered.tokens.clear()
        self.acks.taken(partial.submit.seq)
        self.told_may_differ()

    def _abort(self, handles: Sequence[int], reason: AbortReason) -> None:
        held = [*self._assembly.holding(handles), *self._lobby.holding(handles)]
        for partial in held:
            self._abort_partial(partial, handles, reason)
        waiting = {handle for partial in held for handle in partial.handles}
        running = [handle for handle in handles if handle not in waiting]
        if running:
            self._desk.abort(self.number, running, reason)

    def _abort_partial(self, partial: Partial, handles: Sequence[int], reason: AbortReason) -> None:
        """A request that is not whole yet. It is over with its last choice; others end when it is submitted."""
        for handle in partial.handles.intersection(handles):
            partial.ended.setdefault(handle, reason)
        if len(partial.ended) < len(partial.handles):
            return
        self._void(partial)
        counts = {choice.handle: given(choice) for choice in partial.submit.choices}
        ends = (
            Finished(
                handle=handle,
                reason=ENDS[partial.ended[handle]],
                prompt_tokens=partial.submit.prompt_len,
                output_tokens=count,
                cached_tokens=0,
            )
            for handle, count in counts.items()
        )
        self.outbound.put(Bundle(ends=tuple(map(wire.finish_to_pb, ends)), ended=frozenset(counts)))

    # ---- to the router

    def deliver(
        self,
        step_seq: int,
        deltas: Sequence[TokenDelta],
        finished: Sequence[Finished],
        rejected: Sequence[Rejected],
    ) -> None:
        """What one report has for this stream."""
        self.book.tokens(delta.handle for delta in deltas if delta.tokens)
        for end in finished:
            self.book.finish(end)
        for reject in rejected:
            self.book.reject(reject)
        ends = (*map(wire.finish_to_pb, finished), *map(wire.reject_to_pb, rejected))
        bundle = Bundle(
            step_seq=step_seq,
            acked_seq=self.acks.acked,
            deltas=tuple(deltas),
            ends=ends,
            ended=frozenset(end.handle for end in finished),
        )
        self.outbound.put(bundle)

    def snapshot(self, hashes: tuple[bytes, ...], position: int) -> None:
        """The whole view that it asked for."""
        if self.kv is not None:
            self.kv.snapshot(hashes, position)
            self.outbound.want_kv()

    def told_may_differ(self) -> None:
        """Have a Load sent soon if what it says of load is not what the last one said."""
        load, told = self._desk.load(self), self._told
        if told is None:  # the first is on its way
            return
        if self._worth_telling(load) != self._worth_telling(told):
            spent = self.acks.last - told.acked_seq >= told.credits  # the router's own count is at zero
            self._pacer.changed(urgent=load.credits > 0 and spent)

    def _load(self) -> pb.Down:
        self._told = self._desk.load(self)
        self._pacer.sent()
        return wire.load_to_pb(replace(self._told, adapters=self._desk.adapter_loads()))

    @staticmethod
    def _worth_telling(load: Load) -> tuple[object, ...]:
        return (load.running, load.waiting, load.credits, load.draining, load.acked_seq)
