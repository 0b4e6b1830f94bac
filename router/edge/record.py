"""One line in the log, and one span, for each request of either edge. Neither ever holds a prompt.

Spans are recorded where the process has set up a tracer provider; elsewhere they pass the caller's trace on, as the
W3C's Trace Context says, and cost next to nothing.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.errors import answer, from_exception
from shared.redact import redact

_LOG = logging.getLogger("octavo.access")


@dataclass(kw_only=True, slots=True)
class Record:
    """What is known of a request; `traceparent` is its span's own. The edge fills in `status` and `request_id`."""

    name: str
    request_id: str
    traceparent: str
    status: str = ""


def _status(error: BaseException) -> str:
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else answer(from_exception(error)).grpc


def _log(record: Record, started: float) -> None:
    took = 1000 * (time.monotonic() - started)
    _LOG.info("%s status=%s ms=%.1f id=%r", record.name, record.status, took, redact(record.request_id))


@contextmanager
def recorded(name: str, *, request_id: str = "", traceparent: str = "") -> Iterator[Record]:
    """Records the request from here to the block's end, whichever way. `traceparent` is the caller's, or empty."""
    started = time.monotonic()
    propagator = TraceContextTextMapPropagator()
    parent = propagator.extract({"traceparent": traceparent})
    span = trace.get_tracer("octavo.router").start_span(name, parent, kind=trace.SpanKind.SERVER)
    carrier: dict[str, str] = {}
    propagator.inject(carrier, trace.set_span_in_context(span))
    record = Record(name=name, request_id=request_id, traceparent=carrier.get("traceparent", ""))
    try:
        yield record
    except BaseException as error:
        record.status = _status(error)
        raise
    finally:
        span.set_attributes({"octavo.request_id": redact(record.request_id), "octavo.status": record.status})
        span.end()
        _log(record, started)
