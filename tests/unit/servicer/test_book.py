"""Each request leaves one span, a child of its router's, whichever way it ends."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared.types import Finished, FinishReason, RejectCode, Rejected
from tests.fakes.engine import token_request
from worker.servicer.book import Book

TRACE, PARENT = "a" * 32, "b" * 16


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def end(handle: int, reason: FinishReason = FinishReason.LENGTH, count: int = 3) -> Finished:
    return Finished(handle=handle, reason=reason, prompt_tokens=20, output_tokens=count, cached_tokens=16)


def request(seq: int, *handles: int):
    return token_request(seq, *handles, traceparent=f"00-{TRACE}-{PARENT}-01")


def test_a_span_lasts_until_the_last_choice_and_is_the_routers_child(spans):
    book = Book()
    book.begin(request(1, 1, 2))
    book.tokens([1, 2])
    book.tokens([1])
    book.finish(end(1))
    assert not spans.get_finished_spans()
    assert book.handles == (2,)
    book.finish(end(2, count=4))
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert [event.name for event in span.events] == ["first_token"]
    assert span.attributes["octavo.output_tokens"] == 7
    assert span.attributes["octavo.cached_tokens"] == 16
    assert span.attributes["octavo.outcome"] == "length"
    assert book.handles == ()


def test_rejects_errors_and_dropped_streams_are_errors(spans):
    book = Book()
    for seq in (1, 2, 3):
        book.begin(request(seq, seq))
    book.reject(Rejected(seq=1, code=RejectCode.QUEUE_FULL, message="full"))
    book.finish(end(2, FinishReason.ERROR))
    book.close("the router is silent")
    outcomes = [span.attributes["octavo.outcome"] for span in spans.get_finished_spans()]
    assert outcomes == ["rejected: queue_full", "error", "dropped"]
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in spans.get_finished_spans())
    assert book.handles == ()


def test_a_handle_in_use_stays_its_first_requests(spans):
    book = Book()
    book.begin(request(1, 7))
    book.begin(request(2, 7, 8))
    book.reject(Rejected(seq=2, code=RejectCode.INVALID, message="in use"))
    assert book.handles == (7,)
    book.finish(end(7))
    assert [span.attributes["octavo.request_id"] for span in spans.get_finished_spans()] == ["r2", "r1"]


def test_what_is_not_known_is_passed_over(spans):
    book = Book()
    book.tokens([5])
    book.finish(end(5))
    book.reject(Rejected(seq=5, code=RejectCode.INVALID, message="x"))
    assert not spans.get_finished_spans()
