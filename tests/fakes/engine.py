"""A worker without a model: the real servicer, engine thread and scheduler over real gRPC, and an executor whose tokens `alone` foretells.

A gate in front of the executor lets a test hold steps, one by one; nothing ever sleeps.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from prometheus_client import CollectorRegistry

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc
from shared.tokenizer import TokenizerBundle
from shared.types import OPEN_TENANT, Choice, Finished, Sampling, TokenRequest, WorkerInfo
from shared.wire import worker as wire
from tests.fakes import tiny_tokenizers
from tests.fakes.executor import FakeExecutor, alone
from tests.fakes.scripted_worker import until, worker_info
from worker.adapters.version import AdapterParts
from worker.assemble import Parts, assemble
from worker.metrics import WorkerMetrics
from worker.plan import Executor, Pending, StepPlan
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.steptime import StepTimes
from worker.servicer import server as worker_server
from worker.servicer.hub import Hub
from worker.servicer.servicer import WorkerServicer
from worker.servicer.settings import StreamSettings

BOUND = 20.0  # seconds that anything may take
QUICK = StreamSettings(load_interval=0.05, load_gap=0.002, tick=0.005, silent_after=1e9, stall_after=1e9)


class Gate:
    """An executor that another one's steps pass through. `hold` stops them, `allow` lets some by, `open` all; `fails` makes plans fail.

    `waiting` is whether a step stands before it and may not pass.
    """

    def __init__(self, inner: Executor):
        self.inner = inner
        self._standing = False
        self.fails: Callable[[StepPlan], Exception | None] = lambda plan: None
        self._changed = threading.Condition()
        self._left: int | None = None

    @property
    def depth(self) -> int:
        return self.inner.depth

    @property
    def waiting(self) -> bool:
        with self._changed:
            return self._standing and self._left == 0

    def hold(self) -> None:
        self._set(0)

    def open(self) -> None:
        self._set(None)

    def allow(self, steps: int = 1) -> None:
        self._set((self._left or 0) + steps)

    def _set(self, left: int | None) -> None:
        with self._changed:
            self._left = left
            self._changed.notify_all()

    def execute(self, plan: StepPlan) -> Pending:
        with self._changed:
            self._standing = True
            assert self._changed.wait_for(lambda: self._left != 0, BOUND), "the gate was held for too long"
            self._standing = False
            if self._left is not None:
                self._left -= 1
        error = self.fails(plan)
        if error is not None:
            raise error
        return self.inner.execute(plan)


@dataclass(kw_only=True)
class FakeWorker:
    """A running one. `expected` are the outputs that a request's choice must get."""

    target: str
    gate: Gate
    executor: FakeExecutor
    hub: Hub
    servicer: WorkerServicer
    server: worker_server.WorkerServer
    registry: CollectorRegistry
    config: SchedulerConfig
    adapters: AdapterParts | None = None

    def expected(self, request: TokenRequest, index: int = 0, *, adapter: bytes | None = None) -> list[int]:
        given = next(choice.output_tokens for choice in request.choices if choice.index == index)
        return alone(
            request.prompt_tokens,
            request.sampling,
            choice=index,
            given=given,
            vocab=self.config.vocab_size,
            eos=self.config.eos_token_ids,
            limit=min(len(request.prompt_tokens) + request.sampling.max_tokens, self.config.max_model_len),
            adapter=request.adapter_digest if adapter is None else adapter,
        )

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"octavo_worker_{name}", labels) or 0.0

    async def whole(self) -> None:
        """Wait until nothing runs or waits and every block is available."""
        stats = lambda: self.hub.engine.stats  # noqa: E731
        await until(lambda: not self.hub.engine.busy and stats().free_blocks == stats().total_blocks, "a whole pool")
        assert (stats().running, stats().waiting) == (0, 0)

    async def stop(self) -> None:
        """Gone at once, streams and all."""
        self.gate.open()
        await self.server.stop(None)
        await self.hub.engine.stop(BOUND)
        if self.hub.adapters is not None:
            assert await self.hub.adapters.close(BOUND)


def _scheduler_config(about: WorkerInfo, changes: dict[str, Any]) -> SchedulerConfig:
    fields: dict[str, Any] = {
        "max_running": about.max_running,
        "step_tokens": 64,
        "max_model_len": about.max_model_len,
        "vocab_size": about.vocab_size,
        "model_revision": about.model_revision,
        "eos_token_ids": about.eos_token_ids,
        "max_waiting": 32,
        "max_waiting_per_tenant": 32,
    }
    return SchedulerConfig(**(fields | changes))


@asynccontextmanager
async def fake_worker(
    *,
    port: int = 0,
    depth: int = 0,
    blocks: int = 64,
    bundle: TokenizerBundle | None = None,
    settings: StreamSettings = QUICK,
    clock: Callable[[], float] | None = None,
    drain_seconds: float = BOUND,
    info: dict[str, Any] | None = None,
    times: StepTimes | None = None,
    adapters: Callable[[FakeExecutor], AdapterParts] | None = None,
    **scheduler: Any,
) -> AsyncIterator[FakeWorker]:
    """Ready when entered, on a free port of 127.0.0.1; `scheduler` are fields of SchedulerConfig. Its invariants are checked."""
    bundle = bundle or tiny_tokenizers.bundle()
    about = worker_info(bundle, total_blocks=blocks, **(info or {}))
    slots = {} if adapters is None else {"max_adapters": 2}
    config = _scheduler_config(about, {"depth": depth} | slots | scheduler)
    executor = FakeExecutor(
        num_blocks=blocks,
        slots=config.max_running,
        vocab_size=config.vocab_size,
        eos=config.eos_token_ids,
        depth=depth,
    )
    gate, servicer, registry = Gate(executor), WorkerServicer(), CollectorRegistry()
    server = await worker_server.start(servicer, "127.0.0.1", port)
    metrics = WorkerMetrics.make(registry, servicer.serving)
    clocked = {} if clock is None else {"clock": clock}
    of_adapters = None if adapters is None else adapters(executor)
    servicer.loaded = assemble(
        Parts(executor=gate, scheduler=config, info=about, tokenizer=bundle, times=times, adapters=of_adapters),
        metrics=metrics,
        drain_seconds=drain_seconds,
        check=True,
        settings=settings,
        **clocked,
    )
    if servicer.loaded.hub.adapters is not None:
        await servicer.loaded.hub.adapters.looked()
    worker = FakeWorker(
        target=server.address,
        gate=gate,
        executor=executor,
        hub=servicer.loaded.hub,
        servicer=servicer,
        server=server,
        registry=registry,
        config=config,
        adapters=of_adapters,
    )
    try:
        yield worker
    finally:
        await worker.stop()


class PlayedRouter:
    """One router's stream, as a test plays it. `frames` are all that came, in order; `sizes` their bytes."""

    def __init__(self, call: Any):
        self.call = call
        self.frames: list[pb.Down] = []
        self.error: grpc.aio.AioRpcError | None = None
        self.over = False
        self._tokens: dict[int, list[int]] = {}
        self._ends: dict[int, Finished] = {}
        self._reader: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Read everything from here on."""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self._take(frame)
        except grpc.aio.AioRpcError as error:
            self.error = error
        except asyncio.CancelledError:
            pass
        self.over = True

    def _take(self, frame: pb.Down) -> None:
        self.frames.append(frame)
        if frame.HasField("step_batch"):
            for delta in wire.step_from_pb(frame.step_batch).deltas:
                self._tokens.setdefault(delta.handle, []).extend(delta.tokens)
        elif frame.HasField("finish"):
            assert frame.finish.handle not in self._ends, f"handle {frame.finish.handle} ended twice"
            self._ends[frame.finish.handle] = wire.finish_from_pb(frame.finish)

    async def close(self) -> None:
        self.call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
            if not self._reader.cancelled():
                self._reader.result()

    def of(self, kind: str) -> list[Any]:
        """The frames of one kind, unwrapped."""
        return [getattr(frame, kind) for frame in self.frames if frame.HasField(kind)]

    async def send(self, **frame: Any) -> None:
        await self.call.write(pb.Up(**frame))

    async def submit(self, request: TokenRequest) -> None:
        for frame in wire.submit_to_pb(request):
            await self.call.write(frame)

    async def arrived(self) -> None:
        """Wait until the worker has taken everything sent so far."""
        nonce = 1_000 + len(self.of("pong"))
        await self.send(ping=pb.Ping(nonce=nonce))
        await until(lambda: any(pong.nonce == nonce for pong in self.of("pong")), "a pong")

    def tokens(self, handle: int) -> list[int]:
        """All that came for a choice."""
        return self._tokens.get(handle, [])

    def finish(self, handle: int) -> Finished | None:
        """A choice's end, if it has come. There is never a second one."""
        return self._ends.get(handle)

    async def finished(self, *handles: int) -> list[Finished]:
        """Wait for these choices' ends."""
        await until(lambda: all(self.finish(handle) for handle in handles), f"the ends of {handles}")
        return [self._ends[handle] for handle in handles]

    async def came(self, kind: str, count: int = 1) -> list[Any]:
        """Wait for so many frames of a kind."""
        await until(lambda: len(self.of(kind)) >= count, f"{count} {kind}")
        return self.of(kind)

    async def load(self, condition: Callable[[Any], bool]) -> Any:
        """Wait for a new Load of which this holds."""
        seen = len(self.of("load"))
        return await until(lambda: next((load for load in self.of("load")[seen:] if condition(load)), None), "a Load")

    async def ended(self) -> grpc.StatusCode:
        """Wait for the stream's end; its status."""
        await until(lambda: self.over, "the stream's end")
        return grpc.StatusCode.OK if self.error is None else self.error.code()


@asynccontextmanager
async def played_router(
    worker: FakeWorker | str, *, kv_events: bool = False, hello: pb.Hello | None = None, listen: bool = True
) -> AsyncIterator[PlayedRouter]:
    """A stream that has said Hello, on a channel of its own."""
    target = worker if isinstance(worker, str) else worker.target
    async with rpc.channel(target) as channel:
        router = PlayedRouter(worker_pb2_grpc.WorkerStub(channel).Serve())
        await router.send(hello=hello or pb.Hello(protocol=wire.PROTOCOL, router_id="r", kv_events=kv_events))
        if listen:
            router.listen()
        try:
            yield router
        finally:
            await router.close()


def prompt(length: int, first: int = 0, vocab: int = 260) -> tuple[int, ...]:
    """Some tokens. Prompts with another `first` share no block."""
    return tuple(3 + (31 * first + 7 * i) % (vocab - 3) for i in range(length))


def token_request(seq: int, *handles: int, length: int = 20, first: int | None = None, **changes: Any) -> TokenRequest:
    """A greedy request that runs its full length; keyword arguments of the request, or else of its sampling."""
    own = set(TokenRequest.__dataclass_fields__)
    fields = {name: value for name, value in changes.items() if name in own}
    sampling = {name: value for name, value in changes.items() if name not in own}
    defaults: dict[str, Any] = {
        "request_id": f"r{seq}",
        "tenant": OPEN_TENANT,
        "prompt_tokens": prompt(length, seq if first is None else first),
        "choices": tuple(Choice(handle=handle, index=index) for index, handle in enumerate(handles)),
        "sampling": Sampling(**({"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | sampling)),
    }
    return TokenRequest(seq=seq, **(defaults | fields))
