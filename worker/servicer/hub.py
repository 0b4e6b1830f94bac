"""All of a worker's router streams over its one engine: reports fan out here, and here is decided who gets which credit."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence

from protos import worker_pb2 as pb
from shared.errors import Internal, OctavoError, Unavailable
from shared.types import AbortReason, AdapterLoad, Load, TokenRequest, WorkerInfo
from shared.wire import worker as wire
from worker.adapters.errors import AdapterVersionUnavailable
from worker.adapters.service import AdapterService
from worker.engine import AsyncEngine, Report, StepFacts
from worker.metrics import WorkerMetrics
from worker.servicer.adapterfeed import AdapterFeed
from worker.servicer.adapterloads import loads_of
from worker.servicer.credits import shares
from worker.servicer.fanout import by_stream
from worker.servicer.kvfeed import KvFeed
from worker.servicer.settings import StreamSettings
from worker.servicer.stream import RouterStream

_LOG = logging.getLogger("octavo.worker")


class StepsFail(Exception):
    """Steps fail, one after the other, whatever is in them."""


class Hub:
    """A `Desk` to its streams and a `Sink` to the engine. `start` it inside the event loop.

    `epoch` names this start's count of KV changes. `dead` holds what ended the engine, or made the worker give itself up.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        info: WorkerInfo,
        *,
        max_waiting: int,
        metrics: WorkerMetrics,
        settings: StreamSettings,
        clock: Callable[[], float],
    ):
        self.engine = engine
        self.info = info
        self.settings = settings
        self.draining = False
        self.epoch = secrets.randbits(62) + 1
        self.dead: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._max_waiting = max_waiting
        self._metrics = metrics
        self._streams: dict[int, RouterStream] = {}
        self._next_stream = 1
        self._kv_position = 0
        self._preemptions = 0
        self._failed = 0  # steps in a row
        self._moved = asyncio.Event()
        self._searches: set[asyncio.Task[None]] = set()
        self.adapters: AdapterService | None = None  # set before the start, where adapters are served

    def start(self) -> None:
        """Start the engine."""
        self.engine.start(self)
        if self.adapters is not None:
            self.adapters.start()

    def serving(self) -> bool:
        """Whether new work is taken and gets done."""
        return not self.draining and not self.dead.done() and not self.hung()

    def hung(self) -> bool:
        """Whether there is work and no step for longer than steps take."""
        settings, predicted = self.settings, self.engine.predicted_step()
        return self.engine.busy and self.engine.step_age() > max(settings.hung_after, settings.hung_steps * predicted)

    # ---- streams

    def open(self, hello: pb.Hello) -> RouterStream:
        """A router has come. Raises Unavailable where nothing gets done here any more."""
        if self.dead.done():
            raise Unavailable("the worker's engine has died")
        kv = KvFeed(self.epoch, self._kv_position) if hello.kv_events else None
        stream = RouterStream(
            self._next_stream,
            hello,
            self,
            kv=kv,
            adapters=self._adapter_feed(),
            settings=self.settings,
            clock=self._clock,
        )
        self._next_stream += 1
        self._streams[stream.number] = stream
        self._metrics.routers.set(len(self._streams))
        stream.outbound.put_urgent(self._welcome())
        self._retell()
        _LOG.info("router %s has come as stream %d", stream.router_id, stream.number)
        return stream

    def close(self, stream: RouterStream, why: str) -> None:
        """It is over: everything of it ends."""
        del self._streams[stream.number]
        self._metrics.routers.set(len(self._streams))
        stream.close(why)
        self.engine.drop_stream(stream.number)
        self._retell()
        _LOG.info("stream %d is over: %s", stream.number, why)

    def _welcome(self) -> pb.Down:
        welcome = pb.Welcome(protocol=wire.PROTOCOL, info=wire.info_to_pb(self.info), kv_epoch=self.epoch)
        return pb.Down(welcome=welcome)

    def _adapter_feed(self) -> AdapterFeed | None:
        return None if self.adapters is None else AdapterFeed(self.adapters.infos(), self.adapters.info)

    def adapters_changed(self, names: Iterable[str]) -> None:
        """Something that is told of these has."""
        every = tuple(names)
        for stream in self._streams.values():
            if stream.adapters is not None:
                stream.adapters.changed(every)
                stream.outbound.want_adapters()
        if self.adapters is not None:
            infos = {name: self.adapters.info(name) for name in every}
            self._metrics.adapters.tell(infos, self.adapters.library.catalog.used)

    # ---- Desk

    @property
    def max_prompt(self) -> int:
        """Tokens, with one of output beside them."""
        return self.info.max_model_len - 1

    @property
    def numerics_id(self) -> str:
        """See Desk."""
        return self.info.numerics_id

    def submit(self, stream: int, request: TokenRequest) -> None:
        """See Desk."""
        self.engine.submit(stream, request)

    def abort(self, stream: int, handles: Sequence[int], reason: AbortReason) -> None:
        """See Desk."""
        self.engine.abort(stream, handles, reason)

    def request_snapshot(self, stream: int) -> None:
        """See Desk."""
        self.engine.request_snapshot(stream)

    def adapted(self, request: TokenRequest) -> TokenRequest | None:
        """See Desk."""
        if self.adapters is None:
            if request.adapter_name or request.adapter_digest:
                raise AdapterVersionUnavailable("this worker serves no adapters")
            return request
        return self.adapters.known(request)

    def find_adapter(self, request: TokenRequest, done: Callable[[OctavoError | None], None]) -> None:
        """See Desk."""
        task = asyncio.get_running_loop().create_task(self._find_adapter(request, done))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def _find_adapter(self, request: TokenRequest, done: Callable[[OctavoError | None], None]) -> None:
        error = None
        try:
            assert self.adapters is not None
            await self.adapters.find_out(request)
        except OctavoError as refused:
            error = refused
        except Exception:  # noqa: BLE001 - a fault of ours costs this request alone
            _LOG.exception("an adapter cannot be looked for")
            error = Internal("internal error")
        done(error)

    def release(self, digest: bytes) -> None:
        """See Desk."""
        if self.adapters is not None:
            self.adapters.release(digest)

    def prefetch(self, name: str, digest: bytes) -> None:
        """See Desk."""
        if self.adapters is not None:
            self.adapters.prefetch(name, digest)

    def adapter_loads(self) -> tuple[AdapterLoad, ...]:
        """See Desk."""
        return loads_of(self.engine.stats.adapters, self._clock())

    @property
    def _steps(self) -> int:
        """Retired so far: the engine's last step's number is -1 before the first."""
        return self.engine.stats.step_seq + 1

    def load(self, stream: RouterStream) -> Load:
        """See Desk."""
        stats = self.engine.stats
        return Load(
            step_seq=self._steps,
            acked_seq=stream.acks.acked,
            running=stats.running,
            waiting=stats.waiting,
            waiting_uncached_tokens=stats.waiting_uncached_tokens,
            context_tokens=stats.context_tokens,
            free_blocks=stats.free_blocks,
            total_blocks=stats.total_blocks,
            has_work=self.engine.busy,
            last_step_age_ms=min(int(1000 * self.engine.step_age()), (1 << 32) - 1),
            predicted_step_ms=1000 * self.engine.predicted_step(),
            prefill_tokens_per_s=stats.prefill_tokens_per_s,
            credits=self._credits_of(stream),
            draining=self.draining,
            step_us_per_sequence=1e6 * stats.sequence_s,
            step_us_per_context_token=1e6 * stats.context_token_s,
            cold_admissions=stats.cold_admissions,
            waiting_pairs=stats.waiting_pairs,
            step_us_per_pair=1e6 * stats.pair_s,
        )

    def _credits_of(self, stream: RouterStream) -> int:
        """Its part of the free waiting places. What is left over goes round as often as credits expire."""
        free = 0 if self.draining else self._max_waiting - self.engine.stats.waiting
        return shares(free, list(self._streams), int(self._clock())).get(stream.number, 0)

    def _retell(self) -> None:
        """Something has changed that Loads tell."""
        for stream in self._streams.values():
            stream.told_may_differ()
        self._moved.set()

    # ---- Sink

    def on_report(self, report: Report) -> None:
        """See Sink."""
        self._metrics.observe(report, report.stats.preemptions - self._preemptions)
        self._preemptions = report.stats.preemptions
        for number, seq in report.acks:
            if number in self._streams:
                self._streams[number].acks.taken(seq)
        for number, (deltas, finished, rejected) in by_stream(report.output).items():
            if number in self._streams:
                self._streams[number].deliver(self._steps, deltas, finished, rejected)
        if self.adapters is not None:
            self.adapters.observe(report.stats.adapters)
        self._tell_kv(report)
        self._retell()
        self._judge(report.step)

    def _judge(self, step: StepFacts | None) -> None:
        """A worker all of whose steps fail takes requests only to fail them: it must not stay up."""
        if step is None:
            return
        self._failed = self._failed + 1 if step.failed else 0
        if self._failed == self.settings.failed_steps:
            _LOG.critical("the last %d steps have all failed: giving up", self._failed)
            self.on_death(StepsFail(f"the last {self._failed} steps have all failed"))

    def _tell_kv(self, report: Report) -> None:
        change = report.output.kv
        self._kv_position += len(change.added) + len(change.removed)
        for stream in self._streams.values():
            if stream.kv is not None and (change.added or change.removed):
                stream.kv.changed(change)
                stream.outbound.want_kv()
        for number, hashes in report.snapshots:
            if number in self._streams:
                self._streams[number].snapshot(hashes, self._kv_position)

    def on_death(self, error: BaseException) -> None:
        """See Sink."""
        self.end_streams(Unavailable("the worker's engine has died"))
        self._moved.set()
        if not self.dead.done():
            self.dead.set_result(error)

    # ---- draining

    def end_streams(self, error: OctavoError | None) -> None:
        """End all of them: with an error at once, without one when all that waits is written."""
        for stream in self._streams.values():
            stream.end(error)

    async def drain(self, seconds: float) -> int:
        """Take nothing new, and return when nothing runs any more. After `seconds` the rest is aborted: returns how many choices."""
        self._begin_drain(seconds)
        if await self._until(self._idle, seconds):
            return 0
        left = [(stream.number, stream.book.handles) for stream in self._streams.values()]
        for number, handles in left:
            self.engine.abort(number, handles, AbortReason.CLIENT)
        await self._until(self._idle, self.settings.flush_timeout)
        return sum(len(handles) for _, handles in left)

    def _begin_drain(self, seconds: float) -> None:
        if self.draining:
            return
        self.draining = True
        frame = pb.Down(draining=pb.Draining(deadline_ms=int(1000 * seconds)))
        for stream in self._streams.values():
            stream.outbound.put_urgent(frame)
        self._retell()

    def _idle(self) -> bool:
        return self.dead.done() or not self.engine.busy

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether `condition` came to hold within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> bool:
        """End the streams in peace, as far as their routers read in time, then the engine; whether that ended in time."""
        self.end_streams(None)
        if not await self._until(lambda: not self._streams, self.settings.flush_timeout):
            _LOG.warning("%d routers have not read to the end", len(self._streams))
        ended = await self.engine.stop(self.settings.flush_timeout)
        if self.adapters is not None and not await self.adapters.close(self.settings.flush_timeout):
            _LOG.warning("an adapter is still being loaded")
        return ended
