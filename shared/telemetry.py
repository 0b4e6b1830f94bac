"""Logs and traces of a process. Traces leave it where OpenTelemetry's variables name an OTLP endpoint."""

import logging
import sys
from collections.abc import Callable, Mapping

from shared.redact import Redacting

LEVELS = ("debug", "info", "warning", "error")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class OneLine(logging.Formatter):
    """Spells what is not printable in a message, which may repeat what a peer said: no event looks like two, and no terminal obeys it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """See logging.Formatter."""
        if not record.message.isprintable():
            record.message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in record.message)
        return super().formatMessage(record)


def setup_logging(level: str) -> None:
    """One line an event on stderr: time, level, logger, message, and no API key. `level` is one of LEVELS."""
    form = OneLine("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def setup_tracing(service: str, environ: Mapping[str, str]) -> Callable[[], None]:
    """Exports spans as `service` where an endpoint is configured.

    Returns what flushes and ends the export; it may block for seconds.
    """
    if not any(environ.get(name) for name in _ENDPOINTS):
        return lambda: None
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown
