"""The worker's process.

It prints two JSON lines on stdout: {"event": "listening", "address": "host:port"} once it listens (with "metrics" where these
are served), and {"event": "ready", ...} once the model is loaded. SIGTERM and SIGINT drain it; a second one stops it at once.
Exit status: 0 after a drain, 1 where it could not load or listen, its engine died or hung, its steps all failed, or it was
stopped at once, 2 for a wrong configuration.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

from shared import config, telemetry
from shared.process import Stop, keep_all, tell, tune_threads
from worker.assemble import Parts, assemble
from worker.config import ENV_PREFIX, WorkerConfig
from worker.loading import LoadFailed, load
from worker.metrics import WorkerMetrics
from worker.servicer import server as grpc_server
from worker.servicer.servicer import Loaded, WorkerServicer

LAST_BYTES_SECONDS = 1.0  # for answers on their way when nothing runs any more

_LOG = logging.getLogger("octavo.worker")


async def _first(*waiting: Awaitable[Any]) -> None:
    """Returns when one of them is done; what else waits is cancelled, futures are left alone."""
    tasks = {asyncio.ensure_future(each) for each in waiting}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if isinstance(task, asyncio.Task):
            task.cancel()


def _loading(settings: WorkerConfig) -> "asyncio.Future[Parts]":
    """Loads on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Parts] = loop.create_future()

    def settle(parts: Parts | None, error: Exception | None) -> None:
        if parts is not None:
            future.set_result(parts)
        elif error is not None:
            future.set_exception(error)

    def run() -> None:
        parts, problem = None, None
        try:
            parts = load(settings)
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, parts, problem)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return future


@contextmanager
def _metrics_server(settings: WorkerConfig, registry: CollectorRegistry) -> Iterator[dict[str, str]]:
    """What the listening event tells of it. Raises OSError where the port is taken."""
    if settings.metrics_port is None:
        yield {}
        return
    try:
        server, _ = start_http_server(settings.metrics_port, settings.host, registry)
    except OSError as error:
        raise OSError(f"cannot listen on {settings.host}:{settings.metrics_port}: {error.strerror}") from error
    try:
        yield {"metrics": f"{settings.host}:{server.server_port}"}
    finally:
        server.shutdown()
        server.server_close()


async def _drained(loaded: Loaded, stop: Stop) -> None:
    _LOG.info("draining")
    drain = asyncio.create_task(loaded.hub.drain(loaded.drain_seconds))
    await _first(asyncio.shield(drain), stop.now.wait())
    if not drain.done():
        drain.cancel()
    elif drain.result():
        _LOG.warning("aborted %d choices at the end of the drain", drain.result())


async def _run(
    parts: Parts, settings: WorkerConfig, servicer: WorkerServicer, metrics: WorkerMetrics, stop: Stop
) -> int:
    """From the loaded model to the end; the exit status."""
    loaded = assemble(
        parts, metrics=metrics, drain_seconds=settings.drain_seconds, check=settings.check_integrity
    )  # fmt: skip
    hub = loaded.hub
    if hub.adapters is not None:
        await hub.adapters.looked()
    keep_all()
    servicer.loaded = loaded
    tell(event="ready", model=parts.info.model, worker_id=parts.info.worker_id)
    await _first(stop.drain.wait(), hub.dead)
    if not hub.dead.done():
        await _drained(loaded, stop)
    if stop.now.is_set() or not await hub.aclose():
        return 1
    await asyncio.to_thread(parts.close)
    return 1 if hub.dead.done() else 0


async def serve(settings: WorkerConfig) -> int:
    """Runs the worker until it is told to stop; its exit status. Raises OSError where it cannot listen, LoadFailed where it cannot load."""
    stop, servicer, registry = Stop(), WorkerServicer(), CollectorRegistry()
    stop.install()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = WorkerMetrics.make(registry, servicer.serving)
    server = await grpc_server.start(servicer, settings.host, settings.port)
    try:
        with _metrics_server(settings, registry) as told:
            tell(event="listening", address=server.address, **told)
            loading = _loading(settings)
            await _first(loading, stop.drain.wait())
            return await _run(loading.result(), settings, servicer, metrics, stop) if loading.done() else 0
    finally:
        await server.stop(None if stop.now.is_set() else LAST_BYTES_SECONDS)


def _leave(status: int) -> int:
    """A thread that still loads or computes would be torn down in the middle of native code: then the process ends without it."""
    if any(thread.name in ("loading", "engine") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """The `octavo-worker` command."""
    arguments = sys.argv[1:] if argv is None else argv
    settings = config.load(WorkerConfig, arguments, prog="octavo-worker", env_prefix=ENV_PREFIX, environ=os.environ)
    telemetry.setup_logging(settings.log_level)
    tune_threads()
    flush = telemetry.setup_tracing("octavo-worker", os.environ)
    status = 1
    try:
        status = uvloop.run(serve(settings))
    except (OSError, LoadFailed) as error:
        sys.stderr.write(f"octavo-worker: {error}\n")
    finally:
        flush()
    return _leave(status)


if __name__ == "__main__":
    sys.exit(main())
