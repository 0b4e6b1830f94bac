"""One line in the log, and one span, for each request of either edge. Neither ever holds a prompt."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LOG = logging.getLogger("octavo.access")


@dataclass(kw_only=True, slots=True)
class Record:
    """What is known of a request; the edge fills in its `status` as it learns it."""

    name: str
    request_id: str
    traceparent: str
    status: str = "cancelled"


@contextmanager
def recorded(record: Record, *, level: int = logging.INFO) -> Iterator[Record]:
    """Logs the request when the block is left."""
    started = time.monotonic()
    try:
        yield record
    finally:
        took = 1000 * (time.monotonic() - started)
        _LOG.log(level, "%s status=%s ms=%.1f id=%s", record.name, record.status, took, record.request_id)
