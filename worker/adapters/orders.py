"""What the scheduler orders for device slots: brought from host memory, read again first where it has left, and answered to the engine."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from shared.errors import OctavoError
from shared.types import RejectCode
from worker.adapters.catalog import Held
from worker.adapters.errors import AdapterVersionUnavailable, reject_code
from worker.adapters.jobs import JobThread
from worker.adapters.library import EnginePort, Library
from worker.adapters.version import AdapterParts, Version

_LOG = logging.getLogger("octavo.worker")


class Orders:
    """A `worker.scheduler.adapters.SlotLoader`, whose two calls come from the engine's thread; all else runs on the event loop.

    `library` and `engine` are set before the first order can come.
    """

    def __init__(self, parts: AdapterParts):
        self.library: Library
        self.engine: EnginePort
        self.failed = 0
        self.installed = 0
        self._loop = asyncio.get_running_loop()
        self._device = parts.device
        self._thread = JobThread("adapter-installer", parts.prepare)
        self._tasks: set[asyncio.Task[None]] = set()

    def install(self, slot: int, digest: bytes) -> None:
        """See SlotLoader."""
        self._post(lambda: self._start(slot, digest))

    def clear(self, slot: int) -> None:
        """See SlotLoader."""
        self._post(lambda: self._clear(slot))

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: the process ends
            _LOG.debug("the event loop is gone")

    # ---- on the event loop

    async def close(self, timeout: float) -> bool:
        """End the thread; whether it ended in time."""
        for task in list(self._tasks):
            task.cancel()
        return await asyncio.to_thread(self._thread.stop, timeout)

    def _start(self, slot: int, digest: bytes) -> None:
        task = self._loop.create_task(self._install(slot, digest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _clear(self, slot: int) -> None:
        self._thread.do(partial(self._device.clear, slot)).add_done_callback(_log_failure)

    async def _install(self, slot: int, digest: bytes) -> None:
        try:
            version = await self._version(digest)
            await self._thread.do(partial(self._device.install, slot, version.weights))
        except OctavoError as error:
            self._refuse(slot, reject_code(error), error.message)
        except MemoryError:
            self._refuse(slot, RejectCode.ADAPTER_MEMORY, "the device has no memory for the adapter")
        except ValueError as error:  # what does not fit a slot
            self._refuse(slot, RejectCode.ADAPTER_INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours costs this adapter's requests, and nobody else's
            if type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU: here torch is not known
                self._refuse(slot, RejectCode.ADAPTER_MEMORY, "the device has no memory for the adapter")
                return
            _LOG.exception("an adapter cannot be brought to slot %d", slot)
            self._refuse(slot, RejectCode.ADAPTER_VERSION_UNAVAILABLE, "the adapter cannot be brought to the device")
        else:
            self.installed += 1
            self.engine.adapter_loaded(slot)

    def _refuse(self, slot: int, code: RejectCode, message: str) -> None:
        self.failed += 1
        self.engine.adapter_failed(slot, code, message)

    async def _version(self, digest: bytes) -> Version:
        held = self.library.catalog.version(digest)
        if held is None:
            raise AdapterVersionUnavailable("this version of the adapter is not here any more")
        if held.version is not None:
            return held.version
        return await self._again(held)

    async def _again(self, held: Held) -> Version:
        """Its weights have left host memory: they come from where its name has them, if they are still the same."""
        for name in list(held.names):
            found = await self.library.have(name)
            if found is held and held.version is not None:
                return held.version
        raise AdapterVersionUnavailable("this version of the adapter is not at its source any more")


def _log_failure(future: "asyncio.Future[None]") -> None:
    if not future.cancelled() and future.exception() is not None:
        _LOG.error("an adapter slot cannot be cleared", exc_info=future.exception())
