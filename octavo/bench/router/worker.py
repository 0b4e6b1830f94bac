"""Workers that only pretend: each gives every choice that runs one token a step, and each new choice its first token at once.

    python -m octavo.bench.router.worker --workers 4 --step-ms 20

One process for all of them; it prints {"event": "listening", "targets": [...]} once it listens. With --step-ms 0 a step follows the
other as fast as the router reads (HTTP/2's own flow control).
"""

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import uvloop

from octavo.bench.router import tokenizer
from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc
from shared.process import tell
from shared.types import Finished, FinishReason, KvSnapshot, Load, WorkerInfo
from shared.wire import worker as wire

REPORT_SECONDS = 0.25
CREDITS = 4_096
BLOCKS = 1 << 20
LONGEST = 1 << 20  # tokens of context
_PIECE = 1 << 16  # bytes of a tokenizer's file, a message


def _info(number: int) -> WorkerInfo:
    return WorkerInfo(
        worker_id=f"simulated-{number}",
        model="simulated",
        model_revision="1",
        tokenizer_digest=tokenizer.bundle().digest,
        numerics_id="simulated",
        max_model_len=LONGEST,
        vocab_size=tokenizer.VOCAB_SIZE,
        block_size=16,
        total_blocks=BLOCKS,
        max_running=CREDITS,
        eos_token_ids=(tokenizer.END_TOKEN,),
        version="0",
    )


class Stream:
    """One router's: what runs, and what is to be sent before the next step."""

    def __init__(self) -> None:
        self.acked = 0
        self.steps = 0
        self.left: dict[int, int] = {}  # handle -> tokens to come
        self.control: deque[pb.Down] = deque()
        self.woken = asyncio.Event()

    def take(self, frame: pb.Up) -> None:
        """A frame of the router's."""
        match frame.WhichOneof("frame"):
            case "submit":
                self._submit(frame.submit)
            case "abort":
                for handle in frame.abort.handles:
                    if self.left.pop(handle, None) is not None:
                        self._finish(handle, 0, FinishReason.ABORTED)
            case "snapshot_request":
                self._send(wire.kv_snapshot_to_pb(KvSnapshot(epoch=1, sequence=0, hashes=(), last=True)))

    def _submit(self, submit: pb.Submit) -> None:
        self.acked = submit.seq
        handles = [choice.handle for choice in submit.choices]
        self._send(self._batch(handles))
        for handle in handles:
            if submit.sampling.max_tokens > 1:
                self.left[handle] = submit.sampling.max_tokens - 1
            else:
                self._finish(handle, 1, FinishReason.LENGTH)

    def _finish(self, handle: int, tokens: int, reason: FinishReason) -> None:
        finished = Finished(handle=handle, reason=reason, prompt_tokens=16, output_tokens=tokens, cached_tokens=0)
        self._send(wire.finish_to_pb(finished))

    def _send(self, frame: pb.Down) -> None:
        self.control.append(frame)
        self.woken.set()

    def _batch(self, handles: list[int]) -> pb.Down:
        words = [tokenizer.word(self.steps + handle) for handle in handles]
        batch = pb.StepBatch(
            step_seq=self.steps, acked_seq=self.acked, handles=handles, counts=[1] * len(handles), tokens=words
        )
        return pb.Down(step_batch=batch)

    def step(self) -> list[pb.Down]:
        """One token for each choice, in frames of as many as a frame may hold."""
        self.steps += 1
        running, size = list(self.left), wire.STEP_TOKENS
        frames = [self._batch(running[start : start + size]) for start in range(0, len(running), size)]
        for handle in running:
            left = self.left[handle] = self.left[handle] - 1
            if not left:
                del self.left[handle]
                self._finish(handle, self.steps, FinishReason.LENGTH)
        return frames

    def report(self) -> None:
        """A Load."""
        load = Load(
            step_seq=self.steps,
            acked_seq=self.acked,
            running=len(self.left),
            waiting=0,
            waiting_uncached_tokens=0,
            context_tokens=0,
            free_blocks=BLOCKS // 2,
            total_blocks=BLOCKS,
            has_work=bool(self.left),
            last_step_age_ms=0,
            predicted_step_ms=1.0,
            prefill_tokens_per_s=1e6,
            credits=CREDITS,
        )
        self._send(wire.load_to_pb(load))


class Simulated(worker_pb2_grpc.WorkerServicer):
    """One worker. `step_s` is the time from one step to the next."""

    def __init__(self, number: int, step_s: float):
        self._info = _info(number)
        self._step_s = step_s

    async def Serve(self, frames: AsyncIterator[pb.Up], context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """One stream, written from here alone."""
        stream = Stream()
        welcome = pb.Welcome(protocol=wire.PROTOCOL, info=wire.info_to_pb(self._info))
        await context.write(pb.Down(welcome=welcome))
        tasks = [asyncio.create_task(_read(stream, frames)), asyncio.create_task(_reports(stream))]
        try:
            await self._steps(stream, context)
        finally:
            for task in tasks:
                task.cancel()

    async def _steps(self, stream: Stream, context: Any) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            while stream.control:
                await context.write(stream.control.popleft())
            now = loop.time()
            if stream.left and now >= due:
                due = max(due + self._step_s, now - self._step_s)
                for frame in stream.step():
                    await context.write(frame)
                continue
            stream.woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - now) if stream.left else None):
                    await stream.woken.wait()

    async def GetTokenizer(  # noqa: N802
        self, request: pb.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[pb.TokenizerPiece]:
        """The files."""
        del request, context
        bundle = tokenizer.bundle()
        for name, data in bundle.files.items():
            for start in range(0, len(data), _PIECE):
                yield pb.TokenizerPiece(digest=bundle.digest, name=name, data=data[start : start + _PIECE])


async def _read(stream: Stream, frames: AsyncIterator[pb.Up]) -> None:
    async for frame in frames:
        stream.take(frame)


async def _reports(stream: Stream) -> None:
    while True:
        stream.report()
        await asyncio.sleep(REPORT_SECONDS)


async def _serve(workers: int, step_s: float) -> None:
    servers, targets = [], []
    for number in range(workers):
        servicer = Simulated(number, step_s)  # type: ignore[abstract] # a router calls no more here
        server = rpc.server(receive_limit=rpc.INTERNAL_RECEIVE_LIMIT)
        worker_pb2_grpc.add_WorkerServicer_to_server(servicer, server)
        targets.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    tell(event="listening", targets=targets)
    await asyncio.Event().wait()


def main() -> int:
    """Runs until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.workers, arguments.step_ms / 1000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
