"""The generations of one HTTP call, one a prompt, as one sequence of flushes with choices numbered prompt by prompt.

One alone, as almost all are, is read by its reader's own task: each task between would be a turn of the loop to each flush, the first
token's among them.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Self

from router.edge.gate import Gate
from router.request import ChatPrompt, GenerateRequest, Piece, Usage
from router.service import Generation
from router.tenancy.rates import Rates
from shared.errors import Internal, InvalidRequest

Flush = tuple[Piece, ...]

QUEUE = 16  # flushes on their way to the client; what comes beyond waits inside the generation, which bounds it


MAX_ROWS = 1 << 20  # log-probabilities of prompts in one answer, each some fifty bytes in each shape that tells them


class _Done:
    """A generation's last word."""


class Batch:
    """Runs several prompts at once inside `async with`, one as it is read. The first error ends them all; so does leaving the block, or
    `flushes`."""

    def __init__(self, gate: Gate, requests: Sequence[GenerateRequest]):
        self._gate = gate
        self._requests = requests
        self._queue: asyncio.Queue[Flush | _Done | Exception] = asyncio.Queue(QUEUE)
        self._tasks: list[asyncio.Task[None]] = []
        self._opened: list[Generation] = []
        self._rows = 0
        self.choices = sum(request.n for request in requests)

    async def __aenter__(self) -> Self:
        if len(self._requests) == 1:
            return self
        starts = [sum(request.n for request in self._requests[:i]) for i in range(len(self._requests))]
        self._tasks = [
            asyncio.create_task(self._pump(start, request))
            for start, request in zip(starts, self._requests, strict=True)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def first(self) -> Generation:
        """The generation that was admitted first; there is one as soon as there is a flush."""
        return self._opened[0]

    @property
    def rates(self) -> Rates | None:
        """The tenant's, as the prompt that was admitted last found them."""
        return self._opened[-1].rates

    @property
    def resumed(self) -> str:
        """As Generation.resumed, of any of them."""
        return next((generation.resumed for generation in self._opened if generation.resumed), "")

    @property
    def usage(self) -> Usage:
        """Counts over all prompts; exact once `flushes` has ended."""
        each = [generation.usage for generation in self._opened]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in each),
            completion_tokens=sum(usage.completion_tokens for usage in each),
            cached_tokens=sum(usage.cached_tokens for usage in each),
        )

    async def flushes(self) -> AsyncGenerator[Flush, None]:
        """What any generation gives, as it comes. Raises what any raises. To be closed, as it may hold a generation."""
        unfinished = self.choices
        async with aclosing(self._merged() if self._tasks else self._one(self._requests[0])) as flushes:
            async for flush in flushes:
                unfinished -= sum(piece.ended is not None for piece in flush)
                yield flush
        if unfinished:
            raise Internal("the generation ended before all of its choices")

    async def _merged(self) -> AsyncGenerator[Flush, None]:
        running = len(self._tasks)
        while running:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, _Done):
                running -= 1
            else:
                yield item

    async def _one(self, request: GenerateRequest) -> AsyncGenerator[Flush, None]:
        async with self._gate.open(request) as generation:
            self._opened.append(generation)
            self._count_rows(request, len(generation.prompt_tokens))
            async for pieces in generation:
                yield pieces

    def _count_rows(self, request: GenerateRequest, prompt_len: int) -> None:
        """Raises InvalidRequest where the answer would tell more than MAX_ROWS: a small body can ask for gigabytes."""
        options = request.sampling
        if options.prompt_logprobs is None:
            return
        told = 1 if isinstance(request.prompt, ChatPrompt) else request.n
        self._rows += told * prompt_len * (1 + options.prompt_logprobs)
        if self._rows > MAX_ROWS:
            param = "logprobs" if request.echo and options.logprobs == options.prompt_logprobs else "prompt_logprobs"
            message = f"{param}: choices times prompt tokens times alternatives may be {MAX_ROWS} in one answer"
            raise InvalidRequest(message, param=param)

    async def _pump(self, start: int, request: GenerateRequest) -> None:
        try:
            async with aclosing(self._one(request)) as flushes:
                async for pieces in flushes:
                    await self._queue.put(_numbered(pieces, start))
        except Exception as error:  # noqa: BLE001 - the reader raises it
            await self._queue.put(error)
        else:
            await self._queue.put(_Done())


def _numbered(pieces: Flush, start: int) -> Flush:
    return tuple(replace(piece, index=piece.index + start) for piece in pieces) if start else pieces
