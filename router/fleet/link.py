"""The link to one target: connects for ever, and keeps one stream alive while the worker there lives."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import grpc
import grpc.aio

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from router.fleet.breaker import Breaker, BreakerState
from router.fleet.ends import CUT, ENDED, HUNG, SILENT, LinkLost, describe, is_fault, reason_of, says_so, told
from router.fleet.kept import NO_USES, KeptView
from router.fleet.liveness import Liveness
from router.fleet.reserve import held_back
from router.fleet.sanity import check_info
from router.fleet.settings import LinkSettings
from router.fleet.stream import Sink, Ticket, WorkerStream
from router.fleet.tokenizers import TokenizerStore, assemble
from router.placement.cursor import KvCursor
from router.placement.index import KvIndex, Member
from router.placement.view import Share, WorkerView
from router.text.tokenizer import ModelText
from shared import rpc
from shared.types import TokenRequest, WorkerInfo
from shared.wire import worker as wire

CLOSE_AGAIN = 0.5  # seconds after which a link that should end is told so once more
UNREAD = 8 << 10  # bytes of a worker's frames that wait here: all are before what it says to a new request

log = logging.getLogger(__name__)


class LinkState(Enum):
    """Of a link, for people and gauges."""

    DOWN = "down"  # no stream, or no tokenizer yet
    SUSPECT = "suspect"
    HUNG = "hung"
    DRAINING = "draining"
    BROKEN = "broken"  # its breaker is open
    READY = "ready"


# These are asked of every worker for every request, and looking an enum's member up takes a quarter of a microsecond (Python 3.11).
_READY = LinkState.READY
_BROKEN = LinkState.BROKEN
_TAKING = (_READY, LinkState.SUSPECT, _BROKEN)
_CLOSED = BreakerState.CLOSED


class LinkOwner(Protocol):
    """Hears of a link."""

    def joined(self, link: "WorkerLink") -> None:
        """A worker is connected and its tokenizer loaded."""

    def changed(self, link: "WorkerLink") -> None:
        """Its load, its credit or its state may have changed."""

    def alone(self, link: "WorkerLink") -> bool:
        """Whether there is no other worker of its pool whose breaker is closed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkContext:
    """What all links of a router share."""

    router_id: str
    settings: LinkSettings
    clock: Callable[[], float]
    tokenizers: TokenizerStore
    owner: LinkOwner
    index: KvIndex | None = None  # told of workers' caches, where placement looks at them


@dataclass(frozen=True, kw_only=True, slots=True)
class Connected:
    """A worker that is there: what it is, its tokenizer, its stream."""

    info: WorkerInfo
    text: ModelText
    stream: WorkerStream


class WorkerLink:
    """One target's link. `dispatched` counts requests sent to the present worker_id."""

    def __init__(self, target: str, context: LinkContext):
        self.target = target
        self.dispatched = 0
        self.worker: Connected | None = None
        self.stub: worker_pb2_grpc.WorkerAsyncStub | None = None  # for unary calls, while it runs
        self.breaker = Breaker(context.settings)
        self.had_adapters: frozenset[str] = frozenset()  # names that were here when the last stream ended
        self.settled = False  # it has been connected, or could not be
        self.retired = False  # its target has vanished: it gets nothing new
        self._context = context
        self._last_id = ""
        self._unreached: str | None = None  # why, as it was logged
        self._hung = False
        self._closing = False
        self._kept = KeptView()
        self._cursor: KvCursor | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name=f"link {self.target}")

    async def aclose(self) -> None:
        """Cut the stream; what was open is lost. A cancellation may be swallowed, by a task group that fails just then for one: so it is
        repeated, and the flag stands beside it.
        """
        self._closing = True
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_AGAIN)

    def state(self, now: float) -> LinkState:
        """How the worker stands at `now`."""
        worker = self.worker
        if worker is None:
            return LinkState.DOWN
        stream = worker.stream
        liveness = stream.liveness
        if liveness.hung:
            return LinkState.HUNG
        if self.retired or stream.draining or liveness.draining:
            return LinkState.DRAINING
        if liveness.suspect(now):
            return LinkState.SUSPECT
        return _READY if self.breaker.state is _CLOSED else _BROKEN

    def takes_work(self, now: float) -> bool:
        """Whether new requests may wait for this worker; one that is only suspect may come back, and so may one that keeps failing."""
        return self.state(now) in _TAKING

    def view(self, now: float) -> WorkerView | None:
        """The worker as a policy sees it; None where it gets nothing now."""
        if self.worker is None or not self._open_to_work(now) or not self.worker.stream.takes(now):
            return None
        return self.known_view()

    def known_view(self) -> WorkerView | None:
        """The worker as a policy would see it, whether it gets anything now or not; None while it has not reported."""
        worker = self.worker
        if worker is None or (load := worker.stream.liveness.load) is None:
            return None
        info, stream = worker.info, worker.stream
        uses = stream.adapters.uses(load) if info.max_adapters else NO_USES
        return self._kept.of(info, load, pending=stream.pending, dispatched=self.dispatched, uses=uses)

    def held_back(self, now: float) -> bool:
        """Whether all places that the worker grants now are for tenants that have less there than their share."""
        if self.worker is None or (load := self.worker.stream.liveness.load) is None:
            return False
        stream = self.worker.stream
        waiting = load.waiting + stream.pending.choices
        return held_back(places=stream.credits(now), waiting=waiting, max_running=self.worker.info.max_running)

    def _open_to_work(self, now: float) -> bool:
        """A worker with an open breaker gets its probes alone, unless all others of its pool keep failing too: then any may do."""
        state = self.state(now)
        if state is _BROKEN:
            return self.breaker.allows(now) or self._context.owner.alone(self)
        return state is _READY

    @property
    def idle(self) -> bool:
        """Whether nothing runs there for this router."""
        return self.worker is None or self.worker.stream.open_requests == 0

    @property
    def member(self) -> Member | None:
        """The worker in the index."""
        cursor = self.worker.stream.cursor if self.worker is not None else None
        return None if cursor is None else cursor.member

    def submit(self, request: TokenRequest, sink: Sink, share: Share | None = None) -> Ticket:
        """Send `request`. Only while `view` gives the worker. `share`: see WorkerStream.submit."""
        if self.worker is None:
            raise RuntimeError(f"{self.target} is not connected")
        self.dispatched += 1
        return self.worker.stream.submit(request, sink, share)

    async def _run(self) -> None:
        settings = self._context.settings
        backoff = settings.backoff_first
        async with rpc.channel(self.target, unread=UNREAD) as channel:
            stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
            self.stub = stub
            while not self._closing:
                reason = await self._guarded(stub)
                self.settled = True
                backoff = settings.backoff_first if self.worker else min(2 * backoff, settings.backoff_most)
                self._disconnect(reason)
                if not self._closing:
                    await asyncio.sleep(backoff)

    async def _guarded(self, stub: "worker_pb2_grpc.WorkerAsyncStub") -> str:
        """A session; a fault of ours in it ends it alone, or the worker would never be connected again."""
        try:
            return await self._session(stub)
        except Exception:
            log.exception("the link to %s broke", self.target)
            return CUT

    async def _session(self, stub: "worker_pb2_grpc.WorkerAsyncStub") -> str:
        """One connection, to its end; returns what callers are told of that."""
        call = stub.Serve()
        try:
            await self._converse(stub, call)
        except asyncio.CancelledError:
            self._disconnect("the router stops")
            raise
        except ExceptionGroup as group:
            self._tell(group)
            return told(group)
        finally:
            call.cancel()
            if self._cursor is not None:
                self._cursor.close()
                self._cursor = None
        return CUT

    def _tell(self, group: ExceptionGroup[Exception]) -> None:
        """Logs a worker's end; and why nothing is reached at the target, once, until there is a worker or another reason."""
        before, self._unreached = self._unreached, None if self.worker else reason_of(group)
        if self.worker:
            expected = self.retired or self.worker.stream.draining
            level = logging.INFO if expected and not is_fault(group) else logging.WARNING
            log.log(level, "worker %s: %s", self.target, describe(group), exc_info=is_fault(group))
        elif self._unreached != before:
            level = logging.INFO if says_so(group) else logging.WARNING
            log.log(level, "no worker at %s, trying again: %s", self.target, describe(group), exc_info=is_fault(group))

    async def _converse(self, stub: "worker_pb2_grpc.WorkerAsyncStub", call: Any) -> None:
        """Returns never: whatever ends the stream is an exception within a group."""
        context = self._context
        async with asyncio.TaskGroup() as group:
            hello = pb.Hello(protocol=wire.PROTOCOL, router_id=context.router_id, kv_events=context.index is not None)
            await call.write(pb.Up(hello=hello))
            async with asyncio.timeout(context.settings.connect_timeout):  # wait_for may swallow a cancellation
                info = await _welcome(call)
            stream = self._stream(info)
            group.create_task(_read(call, stream))
            group.create_task(_write(call, stream))
            group.create_task(self._ping(stream))
            group.create_task(self._watch(stream))
            group.create_task(self._join(stub, info, stream))

    def _stream(self, info: WorkerInfo) -> WorkerStream:
        context = self._context
        liveness = Liveness(context.settings, context.clock())
        return WorkerStream(liveness, self.breaker, context.clock, self._note, vocab_size=info.vocab_size)

    async def _join(self, stub: "worker_pb2_grpc.WorkerAsyncStub", info: WorkerInfo, stream: WorkerStream) -> None:
        async def fetch() -> Mapping[str, bytes]:
            pieces = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=self._context.settings.fetch_timeout)
            return await assemble(pieces)

        known = self._follow_cache(info, stream)
        text = await self._context.tokenizers.get(info.tokenizer_digest, fetch)
        async with asyncio.timeout(self._context.settings.fetch_timeout):
            await known.wait()
            if info.max_adapters:
                await stream.adapters.known.wait()
        if info.worker_id != self._last_id:
            self._last_id, self.dispatched = info.worker_id, 0
        self.worker = Connected(info=info, text=text, stream=stream)
        log.info("worker %s at %s serves %s", info.worker_id, self.target, info.model)
        self.settled = True
        self._context.owner.joined(self)

    def _follow_cache(self, info: WorkerInfo, stream: WorkerStream) -> asyncio.Event:
        """Have the index follow the worker's cache; the event is set once it knows all of it, or at once where there is no index."""
        known, index = asyncio.Event(), self._context.index
        if index is None:
            known.set()
            return known

        def ask() -> None:
            stream.outbound.put(pb.Up(snapshot_request=pb.SnapshotRequest()))

        stream.cursor = self._cursor = KvCursor(index, index.join(info.worker_id, info.total_blocks), ask, known.set)
        return known

    def _disconnect(self, reason: str) -> None:
        gone, self.worker, self._hung = self.worker, None, False
        if gone is not None:
            self.had_adapters = frozenset(gone.stream.adapters.entries)
            gone.stream.lose(reason)
            self._context.owner.changed(self)

    def _note(self) -> None:
        """A report came: a worker that has become hung loses its requests, at once and once."""
        worker = self.worker
        if worker is None:
            return
        hung = worker.stream.liveness.hung
        if hung and not self._hung:
            log.warning("worker %s at %s has work and makes no step", worker.info.worker_id, self.target)
            worker.stream.give_up(HUNG)
        self._hung = hung
        self._context.owner.changed(self)

    async def _ping(self, stream: WorkerStream) -> None:
        nonce = 0
        while True:
            nonce += 1
            stream.outbound.put(pb.Up(ping=pb.Ping(nonce=nonce)))
            await asyncio.sleep(self._context.settings.ping_interval)

    async def _watch(self, stream: WorkerStream) -> None:
        while True:
            await asyncio.sleep(self._context.settings.tick)
            now = self._context.clock()
            stream.liveness.look(now)
            if stream.liveness.dead(now):
                raise LinkLost(SILENT)
            self._note()


async def _welcome(call: Any) -> WorkerInfo:
    frame = await call.read()
    if frame is grpc.aio.EOF:
        raise LinkLost("the stream ended before Welcome")
    if not frame.HasField("welcome") or frame.welcome.protocol != wire.PROTOCOL:
        raise LinkLost(f"the first frame is no Welcome of protocol {wire.PROTOCOL}")
    info = wire.info_from_pb(frame.welcome.info)
    check_info(info)
    return info


async def _read(call: Any, stream: WorkerStream) -> None:
    while (frame := await call.read()) is not grpc.aio.EOF:
        stream.handle(frame)
    raise LinkLost(ENDED)


async def _write(call: Any, stream: WorkerStream) -> None:
    while True:
        await call.write(await stream.next_frame())
