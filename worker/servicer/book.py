"""The open requests of one stream, each with its span: a child of the router's, from the Submit to the last choice's end."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.types import Finished, FinishReason, Rejected, TokenRequest


@dataclass(kw_only=True, slots=True, eq=False)
class _Open:
    span: trace.Span
    adapter: bytes = b""  # its digest
    handles: set[int] = field(default_factory=set)
    begun: bool = False  # some token is out
    output_tokens: int = 0


def _span(request: TokenRequest) -> trace.Span:
    parent = TraceContextTextMapPropagator().extract({"traceparent": request.traceparent})
    span = trace.get_tracer("octavo.worker").start_span("worker.generate", parent, kind=trace.SpanKind.SERVER)
    span.set_attribute("octavo.request_id", request.request_id)
    span.set_attribute("octavo.choices", len(request.choices))
    return span


def _nobody(_digest: bytes) -> None:
    """Serves no adapters."""


class Book:
    """Knows what the engine knows of a stream, as far as reports have come. `release` is called with the adapter's digest of each request
    that ends."""

    def __init__(self, release: Callable[[bytes], None] = _nobody) -> None:
        self._release = release
        self._by_seq: dict[int, _Open] = {}
        self._seq_of: dict[int, int] = {}

    @property
    def handles(self) -> tuple[int, ...]:
        """Choices that have not ended."""
        return tuple(self._seq_of)

    def begin(self, request: TokenRequest) -> None:
        """It goes to the engine. A handle that is in use stays its older request's: the engine will reject this one."""
        entry = self._by_seq[request.seq] = _Open(span=_span(request), adapter=request.adapter_digest)
        for choice in request.choices:
            if choice.handle not in self._seq_of:
                self._seq_of[choice.handle] = request.seq
                entry.handles.add(choice.handle)

    def tokens(self, handles: Iterable[int]) -> None:
        """Some came for these choices."""
        for handle in handles:
            entry = self._by_seq.get(self._seq_of.get(handle, 0))
            if entry is not None and not entry.begun:
                entry.begun = True
                entry.span.add_event("first_token")

    def finish(self, finished: Finished) -> None:
        """A choice's end."""
        seq = self._seq_of.pop(finished.handle, 0)
        entry = self._by_seq.get(seq)
        if entry is None:
            return
        entry.handles.discard(finished.handle)
        entry.output_tokens += finished.output_tokens
        if finished.reason is FinishReason.ERROR:
            entry.span.set_status(trace.StatusCode.ERROR, finished.message)
        if not entry.handles:
            entry.span.set_attribute("octavo.prompt_tokens", finished.prompt_tokens)
            entry.span.set_attribute("octavo.cached_tokens", finished.cached_tokens)
            self._end(seq, entry, finished.reason.value)

    def reject(self, rejected: Rejected) -> None:
        """A request that is not taken, or given back."""
        entry = self._by_seq.get(rejected.seq)
        if entry is not None:
            entry.span.set_status(trace.StatusCode.ERROR, rejected.message)
            self._end(rejected.seq, entry, f"rejected: {rejected.code.value}")

    def close(self, why: str) -> None:
        """The stream is over."""
        for seq, entry in list(self._by_seq.items()):
            entry.span.set_status(trace.StatusCode.ERROR, why)
            self._end(seq, entry, "dropped")

    def _end(self, seq: int, entry: _Open, outcome: str) -> None:
        for handle in entry.handles:
            del self._seq_of[handle]
        del self._by_seq[seq]
        entry.span.set_attribute("octavo.output_tokens", entry.output_tokens)
        entry.span.set_attribute("octavo.outcome", outcome)
        entry.span.end()
        if entry.adapter:
            self._release(entry.adapter)
