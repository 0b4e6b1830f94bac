"""Every request leaves one line and one span, in its caller's trace."""

import asyncio
import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from router.edge.record import recorded
from shared.errors import Overloaded

TRACE = "a" * 32
PARENT = f"00-{TRACE}-{'b' * 16}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_without_a_provider_the_callers_trace_is_passed_on() -> None:
    with recorded("x", traceparent=PARENT) as record:
        assert record.traceparent == PARENT


@pytest.mark.parametrize("bad", ["", "nonsense", f"00-{'0' * 32}-{'b' * 16}-01", PARENT + "\r\nx: y"])
def test_a_trace_that_is_none_is_dropped(bad: str) -> None:
    with recorded("x", traceparent=bad) as record:
        assert record.traceparent == ""


def test_the_span_is_the_callers_child_and_the_workers_parent(spans: InMemorySpanExporter) -> None:
    with recorded("x", traceparent=PARENT, request_id="r") as record:
        record.status = "OK"
    (span,) = spans.get_finished_spans()
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b" * 16
    assert record.traceparent == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert dict(span.attributes or {}) == {"octavo.request_id": "r", "octavo.status": "OK"}


@pytest.mark.parametrize(
    ("error", "status"),
    [(Overloaded("full"), "RESOURCE_EXHAUSTED"), (RuntimeError(), "INTERNAL"), (asyncio.CancelledError(), "CANCELLED")],
)
def test_failures_are_recorded_with_their_status(
    error: BaseException, status: str, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="octavo.access"), pytest.raises(type(error)), recorded("x"):
        raise error
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"status={status} " in line
    assert (spans.get_finished_spans()[0].attributes or {})["octavo.status"] == status


def test_an_id_cannot_break_the_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="octavo.access"), recorded("x", request_id="a\nb"):
        pass
    assert "\n" not in caplog.records[0].getMessage()
