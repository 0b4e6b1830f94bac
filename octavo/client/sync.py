"""The blocking client. Safe to share between threads."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self, Unpack, overload

from octavo.client import requests, results
from octavo.client.beam import blocking, rounds
from octavo.client.beam.rounds import BeamOptions, BeamResult
from octavo.client.credentials import metadata_of
from octavo.client.failures import told
from octavo.client.requests import DEFAULT_TARGET, Messages, Options
from octavo.client.results import Assembly, Completion, Delta, Logprobs, Model, Usage
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from shared import rpc


class Call(Protocol):
    """A call that streams responses."""

    def __iter__(self) -> Iterator[pb.GenerateResponse]:
        """Responses as they come; raises RpcErrors."""

    def cancel(self) -> object:
        """Aborts it; nothing happens to one that has ended."""


def _receive(call: Call, assembly: Assembly) -> Iterator[Delta]:
    try:
        with told():
            for response in call:
                yield from assembly.add(response)
    finally:
        call.cancel()


class Stream:
    """Deltas as they come. Leaving it early (`close`, the end of a `with`, or dropping it) aborts the work. Iterate it once."""

    def __init__(self, call: Call):
        self._call = call
        self._assembly = Assembly()
        self._deltas = _receive(call, self._assembly)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        """Raises OctavoErrors (shared.errors)."""
        return next(self._deltas)

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

    def close(self) -> None:
        """Aborts what still runs; iterating ends. May be called again."""
        self._call.cancel()
        self._deltas = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self._call.cancel()


class Client:
    """One connection to a router. `timeout` (seconds) bounds each call that is not given its own; None sets no limit.
    `api_key` is sent with each; by default the environment's OCTAVO_API_KEY, if there is one.

    Every method raises OctavoErrors (shared.errors) only.
    """

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float | None = None, api_key: str | None = None):
        self._channel = rpc.blocking_channel(target)
        self._stub = pb_grpc.InferenceStub(self._channel)
        self._timeout = timeout
        self._metadata = metadata_of(api_key)

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        stream: Literal[False] = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        stream: Literal[True],
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Stream: ...

    def chat(
        self,
        messages: Messages,
        *,
        model: str = "",
        stream: bool = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion | Stream:
        """The model's turn in a conversation of {"role": ..., "content": ...}. `model` may be left out where one is served."""
        return self._generate(requests.chat_request(messages, model, options, whole=not stream), stream, timeout)

    @overload
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        stream: Literal[False] = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion: ...

    @overload
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        stream: Literal[True],
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Stream: ...

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = "",
        stream: bool = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Completion | Stream:
        """What follows a text, or token ids."""
        return self._generate(requests.completion_request(prompt, model, options, whole=not stream), stream, timeout)

    def _generate(self, request: pb.GenerateRequest, stream: bool, timeout: float | None) -> Completion | Stream:
        deltas = Stream(self._stub.Generate(request, timeout=timeout or self._timeout, metadata=self._metadata))
        if stream:
            return deltas
        with deltas:
            for _ in deltas:
                pass
            return deltas.completion()

    def beam_search(
        self,
        prompt: rounds.Prompt,
        *,
        model: str = "",
        timeout: float | None = None,
        **options: Unpack[rounds.Options],
    ) -> BeamResult:
        """The best sequences that beam search finds for a text, token ids, or a conversation. See octavo.client.beam."""
        said = BeamOptions(**options)
        served = rounds.chosen(self.models(), model)
        tokens = rounds.given(prompt)
        if tokens is None:
            tokens = self.tokenize(prompt, model=served.id)  # type: ignore[arg-type]
        search = rounds.Rounds(served, tokens, said)
        blocking.run(self._stub, search, timeout or self._timeout, self._metadata)
        texts = [self.detokenize(part, model=served.id) for part in search.parts()]
        return search.result(texts)

    def tokenize(
        self, text: str | Messages, *, model: str = "", add_special_tokens: bool | None = None
    ) -> tuple[int, ...]:
        """Token ids of a text, or of a conversation as the model's template renders it."""
        request = requests.tokenize_request(text, model, add_special_tokens)
        with told():
            return tuple(self._stub.Tokenize(request, timeout=self._timeout, metadata=self._metadata).tokens)

    def detokenize(self, tokens: Sequence[int], *, model: str = "", skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        request = requests.detokenize_request(tokens, model, skip_special_tokens)
        with told():
            return self._stub.Detokenize(request, timeout=self._timeout, metadata=self._metadata).text

    def models(self) -> tuple[Model, ...]:
        """Every served model."""
        with told():
            return results.models(
                self._stub.ListModels(pb.ListModelsRequest(), timeout=self._timeout, metadata=self._metadata)
            )

    def close(self) -> None:
        """Ends the connection, and with it every stream."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
