"""The client for an event loop."""

from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Literal, Self, Unpack, overload

import grpc
import grpc.aio

from octavo.client import requests, results
from octavo.client.beam import aio, rounds
from octavo.client.beam.rounds import BeamOptions, BeamResult
from octavo.client.credentials import metadata_of
from octavo.client.failures import told
from octavo.client.requests import DEFAULT_TARGET, Messages, Options
from octavo.client.results import Assembly, Completion, Delta, Logprobs, Model, Usage
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from shared import rpc

Call = grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]


async def _receive(call: Call, assembly: Assembly) -> AsyncIterator[Delta]:
    try:
        with told():
            async for response in call:
                for delta in assembly.add(response):
                    yield delta
    finally:
        call.cancel()


class AsyncStream:
    """Deltas as they come. Leaving it early (`aclose`, the end of an `async with`, or dropping it) aborts the work. Iterate it once."""

    def __init__(self, call: Call):
        self._call = call
        self._assembly = Assembly()
        self._deltas = _receive(call, self._assembly)
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """Raises OctavoErrors (shared.errors)."""
        if self._closed:
            raise StopAsyncIteration
        return await anext(self._deltas)

    @property
    def seed(self) -> int | None:
        """The seed in force; None before the first delta."""
        return self._assembly.seed

    @property
    def usage(self) -> Usage | None:
        """The counts; None before the end."""
        return self._assembly.usage

    @property
    def prompt_logprobs(self) -> tuple[Logprobs | None, ...]:
        """As in Completion: whole from the first delta on."""
        return tuple(self._assembly.prompt_logprobs)

    def completion(self) -> Completion:
        """Everything received so far, joined."""
        return self._assembly.completion()

    async def aclose(self) -> None:
        """Aborts what still runs; iterating ends. May be called again."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._call.cancel()


class AsyncClient:
    """One connection to a router, made when first used, inside the event loop that uses it.

    `timeout` (seconds) bounds each call that is not given its own; None sets no limit.
    `api_key` is sent with each; by default the environment's OCTAVO_API_KEY, if there is one.
    Every method raises OctavoErrors (shared.errors) only.
    """

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float | None = None, api_key: str | None = None):
        self._target = target
        self._timeout = timeout
        self._metadata = metadata_of(api_key)

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        return rpc.channel(self._target)

    @cached_property
    def _stub(self) -> "pb_grpc.InferenceAsyncStub":
        return pb_grpc.InferenceStub(self._channel)

    @overload
    async def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        stream: Literal[False] = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    async def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        stream: Literal[True],
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream: ...

    async def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        stream: bool = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion | AsyncStream:
        """The model's turn in a conversation of {"role": ..., "content": ...}. `model` may be left out where one is served."""
        return await self._generate(requests.chat_request(messages, model, options, whole=not stream), stream, timeout)

    @overload
    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        stream: Literal[False] = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        stream: Literal[True],
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream: ...

    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        stream: bool = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion | AsyncStream:
        """What follows a text, or token ids."""
        return await self._generate(
            requests.completion_request(prompt, model, options, whole=not stream), stream, timeout
        )

    async def _generate(
        self, request: pb.GenerateRequest, stream: bool, timeout: float | None
    ) -> Completion | AsyncStream:
        deltas = AsyncStream(self._stub.Generate(request, timeout=timeout or self._timeout, metadata=self._metadata))
        if stream:
            return deltas
        async with deltas:
            async for _ in deltas:
                pass
            return deltas.completion()

    async def beam_search(
        self,
        prompt: rounds.Prompt,
        *,
        model: str = "",
        timeout: float | None = None,
        **options: Unpack[rounds.Options],
    ) -> BeamResult:
        """The best sequences that beam search finds for a text, token ids, or a conversation. See octavo.client.beam."""
        said = BeamOptions(**options)
        served = rounds.chosen(await self.models(), model)
        tokens = rounds.given(prompt)
        if tokens is None:
            tokens = await self.tokenize(prompt, model=served.id)  # type: ignore[arg-type]
        search = rounds.Rounds(served, tokens, said)
        await aio.run(self._stub, search, timeout or self._timeout, self._metadata)
        texts = [await self.detokenize(part, model=served.id) for part in search.parts()]
        return search.result(texts)

    async def tokenize(
        self, text: str | Messages, *, model: str = "", add_special_tokens: bool | None = None
    ) -> tuple[int, ...]:
        """Token ids of a text, or of a conversation as the model's template renders it."""
        request = requests.tokenize_request(text, model, add_special_tokens)
        with told():
            return tuple((await self._stub.Tokenize(request, timeout=self._timeout, metadata=self._metadata)).tokens)

    async def detokenize(self, tokens: Sequence[int], *, model: str = "", skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        request = requests.detokenize_request(tokens, model, skip_special_tokens)
        with told():
            return (await self._stub.Detokenize(request, timeout=self._timeout, metadata=self._metadata)).text

    async def models(self) -> tuple[Model, ...]:
        """Every served model."""
        with told():
            return results.models(
                await self._stub.ListModels(pb.ListModelsRequest(), timeout=self._timeout, metadata=self._metadata)
            )

    async def aclose(self) -> None:
        """Ends the connection, and with it every stream."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()
