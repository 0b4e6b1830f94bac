"""Sees to it that workers have what the registry says: one that joins later, or begins again, is told of what was loaded at run time, and
what was unloaded meanwhile is unloaded there too. Until a worker has a version, it gets no requests for it.
"""

import asyncio
import logging
from dataclasses import dataclass

from router.adapters.registry import Registry, means, satisfies, source_of
from router.adapters.view import WorkerAdapters
from router.fleet.adapters import load_adapter, pin_adapter, unload_adapter
from router.fleet.fleet import Fleet
from router.fleet.link import Connected, WorkerLink
from router.tenancy.records import AdapterRecord
from shared.errors import NotFound, OctavoError

EVERY = 0.1  # seconds between two looks
FIRST_RETRY, LAST_RETRY = 1.0, 60.0  # seconds after a refusal, doubling

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a worker has not what a record says. Tried again at `again`, on the event loop's clock."""

    record: AdapterRecord
    message: str
    wait: float
    again: float


class _Watched:
    """A connection to a worker: what was seen of it."""

    def __init__(self, worker: Connected, unload: list[str]):
        self.worker = worker
        self.unload = unload  # names that it had when it came, and that were unloaded before
        self.failures: dict[str, Failure] = {}
        self.seen = (-1, -1)
        self.task: asyncio.Task[None] | None = None

    @property
    def view(self) -> WorkerAdapters:
        return self.worker.stream.adapters


class Keeper:
    """Of one fleet."""

    def __init__(self, fleet: Fleet, registry: Registry, *, every: float = EVERY):
        self._fleet = fleet
        self._registry = registry
        self._every = every
        self._watched: dict[WorkerLink, _Watched] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="adapter keeper")

    async def aclose(self) -> None:
        """Look no more."""
        tasks = [self._task, *(watched.task for watched in self._watched.values())]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def failure(self, link: WorkerLink, name: str) -> str:
        """Why this worker has not what the name is to mean; empty where nothing is known."""
        watched = self._watched.get(link)
        failure = watched.failures.get(name) if watched is not None else None
        return "" if failure is None else failure.message

    def why_nowhere(self, name: str) -> str:
        """What a worker said, where one that should have it was asked in vain."""
        told = (watched.failures[name].message for watched in self._watched.values() if name in watched.failures)
        return next(told, "")

    async def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # noqa: BLE001 - a fault of ours must not end what makes workers alike
                _LOG.exception("adapters were not looked at")
            await asyncio.sleep(self._every)

    def look(self) -> None:
        """Take what has changed, and send what is missing."""
        links = [link for link in self._fleet.links if link.worker is not None and link.worker.info.max_adapters]
        for link in list(self._watched):
            if link not in links:
                self._forget(link)
        for link in links:
            self._look_at(link)

    def _forget(self, link: WorkerLink) -> None:
        task = self._watched.pop(link).task
        if task is not None:
            task.cancel()

    def _look_at(self, link: WorkerLink) -> None:
        worker = link.worker
        assert worker is not None
        watched = self._watched.get(link)
        if watched is None or watched.worker is not worker:
            if watched is not None:
                self._forget(link)
            stale = [info.name for info in worker.stream.adapters.entries.values() if self._registry.hides(info)]
            watched = self._watched[link] = _Watched(worker, stale)
        self._learn(watched)
        self._disown(watched)
        if watched.task is None or watched.task.done():
            due = self._due(watched)
            if due or watched.unload:
                watched.task = asyncio.create_task(self._serve(link, watched, due))

    def _learn(self, watched: _Watched) -> None:
        """What other routers, or the worker itself, have done."""
        view, registry = watched.view, self._registry
        for name in [name for name in view.came if not registry.busy(name)]:
            view.came.discard(name)
            registry.lift(name, view.entries[name].digest)
        for name in [name for name in view.gone if not registry.busy(name)]:
            view.gone.discard(name)
            if registry.learns:
                registry.unlearn(name)
        if registry.learns and watched.seen[0] != view.changes:
            for info in list(view.entries.values()):
                if not registry.hides(info) and not registry.busy(info.name):
                    registry.learn(info, watched.worker.info.model)

    def _disown(self, watched: _Watched) -> None:
        """What was unloaded is to be unloaded here, too, whoever did it, and whatever brought it here since."""
        registry = self._registry
        if watched.seen == (watched.view.changes, registry.changes):
            return
        infos = watched.view.entries.values()
        hidden = [info.name for info in infos if registry.hides(info) and not registry.busy(info.name)]
        watched.unload += [name for name in hidden if name not in watched.unload]

    def _due(self, watched: _Watched) -> list[AdapterRecord]:
        """Records that the worker does not satisfy, and that are not to wait."""
        seen, now = (watched.view.changes, self._registry.changes), asyncio.get_running_loop().time()
        if watched.seen == seen and all(failure.again > now for failure in watched.failures.values()):
            return []
        busy = False
        due = []
        for record in self._registry.of(watched.worker.info.model):
            name, failure = record.canonical, watched.failures.get(record.canonical)
            if satisfies(watched.view.entries.get(name), record):
                watched.failures.pop(name, None)
            elif self._registry.busy(name):
                busy = True
            elif failure is None or failure.record != record or failure.again <= now:
                due.append(record)
        watched.seen = (-1, -1) if busy else seen
        return due

    async def _serve(self, link: WorkerLink, watched: _Watched, due: list[AdapterRecord]) -> None:
        while watched.unload:
            await self._unload(link, watched.unload.pop())
        for record in due:
            try:
                await self._load(link, record)
            except OctavoError as error:
                self._failed(link, watched, record, error)

    async def _unload(self, link: WorkerLink, name: str) -> None:
        try:
            await unload_adapter(link, name)
        except NotFound:
            return
        except OctavoError as error:
            _LOG.warning("adapter %s, unloaded meanwhile, is still at %s: %s", name, link.target, error.message)

    async def _load(self, link: WorkerLink, record: AdapterRecord) -> None:
        """A pin that finds no room does not keep the adapter from being used."""
        name = record.canonical
        if self._registry.records.get(name) != record:
            return
        info = None if link.worker is None else link.worker.stream.adapters.entries.get(name)
        if info is None or not means(info, record):
            _LOG.info("adapter %s is loaded at %s, which has it not", name, link.target)
            info = await load_adapter(link, name, source_of(record), replace=True, digest=record.digest)
        if info.pinned != record.pinned:
            await pin_adapter(link, name, record.pinned)
        if name not in self._registry.records and not self._registry.busy(name):  # unloaded meanwhile
            await self._unload(link, name)

    def _failed(self, link: WorkerLink, watched: _Watched, record: AdapterRecord, error: OctavoError) -> None:
        former = watched.failures.get(record.canonical)
        same = former is not None and former.record == record
        wait = min(2 * former.wait, LAST_RETRY) if former is not None and same else FIRST_RETRY
        _LOG.warning("adapter %s cannot be loaded at %s: %s", record.canonical, link.target, error.message)
        again = asyncio.get_running_loop().time() + wait
        watched.failures[record.canonical] = Failure(record=record, message=error.message, wait=wait, again=again)
