"""A worker that does what a test tells it, over real gRPC: for the ways in which workers misbehave, and for exact orders of events."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc
from shared.errors import NotFound, OctavoError, Unavailable
from shared.tokenizer import TokenizerBundle
from shared.types import (
    AdapterInfo,
    AdapterState,
    Finished,
    FinishReason,
    KvSnapshot,
    Load,
    RejectCode,
    Rejected,
    StepDeltas,
    TokenDelta,
    TokenLogprobs,
    WorkerInfo,
)
from shared.wire import adapters as adapter_wire
from shared.wire import worker as wire
from tests.fakes import tiny_tokenizers

BOUND = 30.0  # seconds that a test waits for anything


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Poll until `condition` gives something true, and return that; fails after BOUND."""
    deadline = asyncio.get_running_loop().time() + BOUND
    while not (value := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what or condition}"
        await asyncio.sleep(0.002)
    return value


def worker_info(bundle: TokenizerBundle, **changes: Any) -> WorkerInfo:
    """A plausible worker's, with `changes`."""
    fields: dict[str, Any] = {
        "worker_id": "w1",
        "model": "tiny",
        "model_revision": "r1",
        "tokenizer_digest": bundle.digest,
        "numerics_id": "n",
        "max_model_len": 256,
        "vocab_size": 266,
        "block_size": 16,
        "total_blocks": 100,
        "max_running": 8,
        "eos_token_ids": (2,),
        "version": "0",
    }
    return WorkerInfo(**(fields | changes))


def load_report(**changes: Any) -> Load:
    """An idle worker's, with `changes`."""
    fields: dict[str, Any] = {each.name: 0 for each in dataclasses.fields(Load) if each.default is dataclasses.MISSING}
    fields |= {"free_blocks": 100, "total_blocks": 100, "credits": 100, "has_work": False, "draining": False}
    return Load(**(fields | changes))


@dataclass(eq=False)
class Conversation:
    """One router's stream. `received` are all frames so far; `sizes` their bytes."""

    worker: "ScriptedWorker"
    received: list[pb.Up] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    outbox: "asyncio.Queue[pb.Down | None]" = field(default_factory=asyncio.Queue)
    over: bool = False
    acked: int = 0

    def of(self, kind: str) -> list[Any]:
        """The frames of one kind, unwrapped."""
        return [getattr(frame, kind) for frame in self.received if frame.HasField(kind)]

    @property
    def submits(self) -> list[Any]:
        return self.of("submit")

    @property
    def aborts(self) -> list[Any]:
        return self.of("abort")

    def send(self, frame: pb.Down) -> None:
        self.outbox.put_nowait(frame)

    def load(self, **changes: Any) -> None:
        """A Load that acknowledges all that has come, unless told otherwise."""
        seqs = [submit.seq for submit in self.submits]
        self.acked = max([self.acked, *seqs])
        told = {"acked_seq": self.acked, "cold_admissions": len(seqs)}
        self.send(wire.load_to_pb(load_report(**(told | changes))))

    def tokens(
        self, handle: int, tokens: Sequence[int], *, acked: int = 0, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        delta = TokenDelta(handle=handle, tokens=tuple(tokens), logprobs=tuple(logprobs))
        for frame in wire.step_to_pb(StepDeltas(step_seq=1, acked_seq=acked, deltas=(delta,))):
            self.send(frame)

    def finish(self, handle: int, count: int, reason: FinishReason = FinishReason.LENGTH, **more: Any) -> None:
        fields = {"prompt_tokens": 1, "cached_tokens": 0} | more
        self.send(wire.finish_to_pb(Finished(handle=handle, reason=reason, output_tokens=count, **fields)))

    def reject(self, seq: int, code: RejectCode, **more: Any) -> None:
        fields = {"message": f"rejected: {code.value}"} | more
        self.send(wire.reject_to_pb(Rejected(seq=seq, code=code, **fields)))

    def adapters(self, *entries: AdapterInfo, removed: Sequence[str] = (), complete: bool = False) -> None:
        state = AdapterState(entries=entries, removed=tuple(removed), complete=complete)
        for frame in adapter_wire.adapter_state_to_pb(state):
            self.send(frame)

    def drop(self) -> None:
        """End the stream from the worker's side."""
        self.outbox.put_nowait(None)


Script = Callable[[Conversation, Any], None]


def echo(conversation: Conversation, submit: Any) -> None:
    """Each choice's output is the prompt, as far as max_tokens goes, a token a step."""
    tokens = list(submit.prompt_tokens)[: submit.sampling.max_tokens]
    conversation.load()
    for token in tokens:
        for choice in submit.choices:
            conversation.tokens(choice.handle, [token], acked=submit.seq)
    for choice in submit.choices:
        conversation.finish(choice.handle, len(tokens), cached_tokens=16)


class ScriptedWorker(worker_pb2_grpc.WorkerServicer):
    """Welcomes, reports `first_load`, and hands each Submit to `script`. `async with` serves it on a free port of 127.0.0.1."""

    def __init__(
        self,
        *,
        script: Script | None = None,
        bundle: TokenizerBundle | None = None,
        first_load: Load | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        adapters: Sequence[AdapterInfo] = (),
        **info: Any,
    ):
        self.bundle = bundle or tiny_tokenizers.bundle()
        self.info = worker_info(self.bundle, **info)
        self.script = script
        self.first_load = first_load or load_report()
        self.host = host
        self.port = port
        self.adapters = {
            each.name: each for each in adapters
        }  # told to each router that comes, where max_adapters is not 0
        self.tells_adapters = True
        self.refuses: OctavoError | None = None  # what LoadAdapter answers to staging, and PinAdapter
        self.refuses_late: OctavoError | None = None  # what LoadAdapter answers to anything else
        self.stages: list[pb.LoadAdapterRequest] = []
        self.loads: list[pb.LoadAdapterRequest] = []
        self.pins: list[pb.PinAdapterRequest] = []
        self.contents: dict[str, bytes] = {}  # digests of sources, where they are not made of their names
        self.snapshots = True  # whether it answers SnapshotRequests, with nothing
        self.conversations: list[Conversation] = []
        self.tokenizer_calls = 0
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> "ScriptedWorker":
        server = rpc.server(receive_limit=rpc.INTERNAL_RECEIVE_LIMIT)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, server)
        self.port = server.add_insecure_port(f"{self.host}:{self.port}")
        await server.start()
        self._server = server
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Gone at once, streams and all."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def target(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def now(self) -> Conversation:
        """The latest stream."""
        return self.conversations[-1]

    async def submits(self, count: int = 1) -> list[Any]:
        """Wait for the first `count` Submits of the latest stream."""
        await until(lambda: self.conversations and len(self.now.submits) >= count, f"{count} submits")
        return self.now.submits

    async def aborts(self, count: int = 1) -> list[Any]:
        """Wait for the first `count` Aborts of the latest stream."""
        await until(lambda: self.conversations and len(self.now.aborts) >= count, f"{count} aborts")
        return self.now.aborts

    async def Serve(self, request_iterator: AsyncIterator[pb.Up], context: Any) -> AsyncIterator[pb.Down]:
        conversation = Conversation(worker=self)
        self.conversations.append(conversation)
        conversation.send(pb.Down(welcome=pb.Welcome(protocol=wire.PROTOCOL, info=wire.info_to_pb(self.info))))
        conversation.send(wire.load_to_pb(self.first_load))
        if self.info.max_adapters and self.tells_adapters:
            conversation.adapters(*self.adapters.values(), complete=True)
        reader = asyncio.create_task(self._read(conversation, request_iterator))
        try:
            while (frame := await conversation.outbox.get()) is not None:
                yield frame
        finally:
            conversation.over = True
            reader.cancel()

    async def _read(self, conversation: Conversation, frames: AsyncIterator[pb.Up]) -> None:
        async for frame in frames:
            conversation.received.append(frame)
            conversation.sizes.append(frame.ByteSize())
            if frame.HasField("snapshot_request") and self.snapshots:
                conversation.send(wire.kv_snapshot_to_pb(KvSnapshot(epoch=1, sequence=0, hashes=(), last=True)))
            if frame.HasField("submit") and self.script is not None:
                self.script(conversation, frame.submit)

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.TokenizerPiece]:
        self.tokenizer_calls += 1
        for name, data in self.bundle.files.items():
            for start in range(0, len(data), 1_000):
                yield pb.TokenizerPiece(digest=self.bundle.digest, name=name, data=data[start : start + 1_000])

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Any) -> pb.AdapterInfo:
        """Has what was asked for, of a digest that is the source's; tells nobody of it. `refuses` staging, `refuses_late` the rest."""
        (self.stages if request.stage else self.loads).append(request)
        refusal = self.refuses if request.stage else self.refuses_late
        if refusal is not None:
            await rpc.abort(context, refusal)
        digest = self.contents.get(request.source, request.source.encode().ljust(32)[:32])
        if request.digest and digest != request.digest:
            await rpc.abort(context, Unavailable("another version now", code="adapter_version_unavailable"))
        former = self.adapters.get(request.name)
        info = AdapterInfo(
            name=request.name,
            digest=digest,
            loaded_unix_ms=len(self.loads),
            source=request.source,
            listed=not request.source,
            pinned=request.pin or (former is not None and former.pinned),
        )
        if not request.stage:
            self.adapters[request.name] = info
        return adapter_wire.adapter_info_to_pb(info)

    async def PinAdapter(self, request: pb.PinAdapterRequest, context: Any) -> pb.AdapterInfo:
        self.pins.append(request)
        if self.refuses is not None:
            await rpc.abort(context, self.refuses)
        if request.name not in self.adapters:
            await rpc.abort(context, NotFound("no such adapter"))
        info = dataclasses.replace(self.adapters[request.name], pinned=request.pinned)
        self.adapters[request.name] = info
        return adapter_wire.adapter_info_to_pb(info)

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: Any) -> pb.UnloadAdapterResponse:
        if self.adapters.pop(request.name, None) is None:
            await rpc.abort(context, NotFound("no such adapter"))
        return pb.UnloadAdapterResponse()
