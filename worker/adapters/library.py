"""Adapters by name: loaded, replaced, unloaded, pinned, and read on demand, once for all who ask meanwhile. Runs on the event loop; files
are read on a thread of its own, and what may have to be fetched from far on another.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from shared.errors import AlreadyExists, OctavoError
from shared.types import AdapterInfo, RejectCode
from worker.adapters.catalog import Catalog, Entry, Held, info_of
from worker.adapters.directory import Found, Signature, find
from worker.adapters.errors import AdapterInvalid, AdapterMemory, AdapterNotFound, AdapterVersionUnavailable
from worker.adapters.jobs import JobThread, Urgency
from worker.adapters.names import checked
from worker.adapters.sources import located
from worker.adapters.staged import Staged
from worker.adapters.version import AdapterParts, Version

_LOG = logging.getLogger("octavo.worker")
_T = TypeVar("_T")


class _Overtaken(AdapterVersionUnavailable):
    """What was read is not what the name means any more."""


class EnginePort(Protocol):
    """What the engine is told of adapters."""

    def adapter_loaded(self, slot: int) -> None:
        """The slot holds what was ordered."""

    def adapter_failed(self, slot: int, code: RejectCode, message: str) -> None:
        """What was ordered for the slot cannot be had."""

    def forget_adapter(self, digest: bytes) -> None:
        """No name means it any more."""

    def remember_adapter(self, digest: bytes) -> None:
        """A name means it again."""

    def pin_adapter(self, digest: bytes, pinned: bool) -> None:
        """Keep its slot from others, or not any more."""


class Library:
    """`changed` is called with names of which something that is told has changed. Times are of `wall_clock`, in seconds.

    `unloaded` are names with the signature of their files then: those files do not bring the name back.
    """

    def __init__(
        self,
        parts: AdapterParts,
        engine: EnginePort,
        changed: Callable[[Iterable[str]], None],
        *,
        wall_clock: Callable[[], float] = time.time,
    ):
        self.catalog = Catalog(parts.host_bytes)
        self.staged = Staged(self.catalog)
        self.reads = 0  # attempts so far
        self.unloaded: dict[str, Signature] = {}
        self._parts = parts
        self._engine = engine
        self._changed = changed
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._thread = JobThread("adapter-reader", parts.prepare)
        self._far = JobThread("adapter-fetcher", parts.prepare)
        self._reading: dict[tuple[str, str], asyncio.Task[Held]] = {}  # by name and source
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def run(self, job: Callable[[], _T], urgency: Urgency = Urgency.NOW) -> "asyncio.Future[_T]":
        """On the thread that reads."""
        return self._thread.do(job, urgency)

    async def close(self, timeout: float) -> bool:
        """End the thread; whether it ended in time."""
        for task in list(self._reading.values()):
            task.cancel()
        self.staged.close()
        stops = (asyncio.to_thread(thread.stop, timeout) for thread in (self._thread, self._far))
        return all(await asyncio.gather(*stops))

    # ---- by name

    async def load(
        self, name: str, source: str, *, replace: bool, pin: bool, digest: bytes = b"", stage: bool = False
    ) -> AdapterInfo:
        """Have the name mean what the source holds now. With `digest` that version: without a read, where it is in memory. With `stage` it
        is read and kept for a while, and the name means what it did.

        Raises AlreadyExists where it means something else and is not to be replaced, AdapterVersionUnavailable where the source holds
        another version than `digest`, AdapterNotFound, AdapterInvalid (and what is under it), AdapterMemory; then nothing has changed.
        """
        checked(name)
        async with self._lock(name):
            new = Entry(name=name, source=source) if source else self.entry_of(await self._find(name))
            version = await self._wanted(new.source, digest)
            self._check_free(name, version, replace=replace)
            if pin:
                self._check_pins(self.catalog.versions.get(version.digest))
            if stage:
                return self._stage(new, version)
            self._bind(name, new, version)
            self.staged.drop(version.digest)
            if pin:
                self._pin(self.catalog.entries[name], True)
            return info_of(self.catalog.entries[name])

    async def _wanted(self, source: str, digest: bytes) -> Version:
        held = self.catalog.version(digest) if digest else None
        if held is not None and held.version is not None:
            return held.version
        version = await self._read(source, Urgency.NOW)
        if digest and version.digest != digest:
            raise AdapterVersionUnavailable(f"{source[:300]} holds another version now", param="source")
        return version

    def _check_free(self, name: str, version: Version, *, replace: bool) -> None:
        entry = self.catalog.entries.get(name)
        if entry is not None and entry.held is not None and entry.held.digest != version.digest and not replace:
            message = f"adapter {name!r} is loaded with another version: `replace` would put this one in its place"
            raise AlreadyExists(message, param="name")

    def _stage(self, new: Entry, version: Version) -> AdapterInfo:
        held = self.catalog.admit(version, new.source)
        self.staged.keep(held)
        new.held = held
        return info_of(new)

    async def unload(self, name: str) -> None:
        """The name means nothing from now on. What runs or waits on its version does so to its end; then its memory goes."""
        async with self._lock(name):
            entry = self._entry(name)
            self.remove(entry)
            if entry.signature is not None:
                self.unloaded[name] = entry.signature

    async def pin(self, name: str, pinned: bool) -> AdapterInfo:
        """Keep it in host memory, and in a device slot when it has one; or not any more."""
        async with self._lock(name):
            entry = self._entry(name)
            if pinned:
                held = await self.have(name)
                self._check_pins(held)
            self._pin(entry, pinned)
            return info_of(entry)

    def _lock(self, name: str) -> asyncio.Lock:
        """One for each name, as long as somebody has it."""
        return self._locks.setdefault(name, asyncio.Lock())

    def _entry(self, name: str) -> Entry:
        entry = self.catalog.entries.get(name)
        if entry is None:
            raise AdapterNotFound(f"there is no adapter {name[:300]!r}", param="name")
        return entry

    def _check_pins(self, held: Held | None) -> None:
        """One slot stays for those that are not."""
        most = self._parts.slots - 1
        if (held is None or not held.pins) and self.catalog.pinned >= most:
            raise AdapterMemory(
                f"{self.catalog.pinned} adapters are pinned; of {self._parts.slots} slots {most} may be"
            )

    def _pin(self, entry: Entry, pinned: bool) -> None:
        self.catalog.pin(entry, pinned)
        if entry.held is not None:
            self._engine.pin_adapter(entry.held.digest, entry.held.pins > 0)
        self._changed((entry.name,))

    def _bind(self, name: str, new: Entry, version: Version, *, only_if_free: bool = False) -> Held:
        """The name means the version, which comes from `new`'s source."""
        held = self.catalog.admit(version, new.source, only_if_free=only_if_free)
        entry = self.catalog.entries.setdefault(name, new)
        entry.source, entry.signature, entry.stale = new.source, new.signature, False
        self.unloaded.pop(name, None)
        former = self.catalog.bind(entry, held, int(1000 * self._wall_clock()))
        self._engine.remember_adapter(held.digest)
        if entry.pinned:
            self._engine.pin_adapter(held.digest, True)
        self._left(former)
        self._changed((name,))
        return held

    def _left(self, held: Held | None) -> None:
        """A name does not mean it any more; others may, and those of them that are pinned keep its slot."""
        if held is None:
            return
        if held.names:
            self._engine.pin_adapter(held.digest, held.pins > 0)
        else:
            self._engine.forget_adapter(held.digest)

    def remove(self, entry: Entry) -> None:
        """The name means nothing any more."""
        del self.catalog.entries[entry.name]
        self._left(self.catalog.unbind(entry))
        self._changed((entry.name,))

    def list(self, entry: Entry) -> None:
        """A name that has come; it is read when it is asked for."""
        self.catalog.entries[entry.name] = entry
        self._changed((entry.name,))

    def relist(self, entry: Entry, found: Found) -> None:
        """The name's files have changed. It means what it did until they have been read."""
        entry.signature, entry.source, entry.error, entry.stale = found.signature, str(found.path), None, True

    async def survey(self, entry: Entry) -> None:
        """Find out which version the entry means, if nobody else does. Raises as `have`."""
        await asyncio.shield(self._task(entry.name, entry, Urgency.IDLE))

    # ---- reading

    async def _read(self, source: str, urgency: Urgency) -> Version:
        parts, self.reads = self._parts, self.reads + 1

        def job() -> Version:
            with located(source, parts.directory, parts.host_bytes) as directory:
                return parts.read(directory, parts.host_bytes)

        try:
            return await self._reader(source).do(job, urgency)
        except OctavoError:
            raise
        except Exception as error:
            _LOG.exception("adapter %s cannot be read", source)
            raise AdapterInvalid(f"it cannot be read: {type(error).__name__}") from error

    def _reader(self, source: str) -> JobThread:
        """What may be far holds up nothing that is here."""
        return self._thread if Path(source).is_absolute() else self._far

    async def _find(self, name: str) -> Found:
        root = self._parts.directory
        if root is None:
            raise AdapterNotFound(f"there is no adapter {name!r}", param="name")
        return await self._thread.do(lambda: find(root, name))

    @staticmethod
    def entry_of(found: Found) -> Entry:
        """A name that is in the directory and has not been read."""
        return Entry(name=found.name, source=str(found.path), signature=found.signature)

    async def have(self, name: str, urgency: Urgency = Urgency.NOW) -> Held:
        """The version that the name means, with its weights in host memory.

        What was found broken is not read again until its files change. Raises AdapterNotFound, AdapterInvalid (and what is under it),
        AdapterMemory, AdapterVersionUnavailable.
        """
        while True:
            entry = self.catalog.entries.get(name)
            held = entry.held if entry else None
            if held is not None and held.version is not None and not (entry and entry.stale):
                self.catalog.touch(held)
                return held
            if entry is not None and held is None and isinstance(entry.error, AdapterInvalid):
                raise entry.error
            try:
                await asyncio.shield(self._task(name, entry, urgency))
            except _Overtaken:
                continue

    def _task(self, name: str, entry: Entry | None, urgency: Urgency) -> "asyncio.Task[Held]":
        key = (name, entry.source if entry else "")
        if key not in self._reading:
            task = self._reading[key] = self._loop.create_task(self._obtain(name, entry, urgency))
            task.add_done_callback(self._obtained)
        return self._reading[key]

    def _obtained(self, task: "asyncio.Task[Held]") -> None:
        for key in [key for key, reading in self._reading.items() if reading is task]:
            del self._reading[key]
        if not task.cancelled():
            task.exception()  # told to those who wait, and in the entry

    async def _obtain(self, name: str, entry: Entry | None, urgency: Urgency) -> Held:
        """`entry` is the catalog's, None where it has none: then the directory is asked."""
        new = entry or await self._found(name)
        if self.unloaded.get(name, ()) == new.signature:
            raise AdapterNotFound(f"adapter {name!r} was unloaded", param="name")
        meaning = new.meaning
        try:
            version = await self._read(new.source, urgency)
        except OctavoError as error:
            if new.meaning == meaning:
                self._failed(new, error)
            raise
        if not self._stands(name, entry, new, meaning):
            raise _Overtaken(f"adapter {name!r} was replaced or unloaded while it was read")
        try:
            return self._bind(name, new, version, only_if_free=urgency is Urgency.IDLE)
        except OctavoError as error:
            self._failed(new, error)
            raise

    async def _found(self, name: str) -> Entry:
        """In the directory, by the read that runs; whoever asks once the name is listed waits for that, too."""
        new = self.entry_of(await self._find(name))
        self._reading.setdefault((name, new.source), self._reading[name, ""])
        return new

    def _stands(self, name: str, entry: Entry | None, new: Entry, meaning: tuple[object, ...]) -> bool:
        """Whether the name means still what was read, or, where it was not listed, nothing else by now."""
        listed = self.catalog.entries.get(name)
        if entry is not None or listed is None:
            gone = self.unloaded.get(name, ()) == new.signature
            return listed is entry and new.meaning == meaning and not gone
        return listed.held is None and listed.meaning == meaning

    def _failed(self, entry: Entry, error: OctavoError) -> None:
        _LOG.warning("adapter %s from %s: %s", entry.name, entry.source, error)
        entry.error = error
        if isinstance(error, AdapterInvalid | AdapterNotFound):
            entry.stale = False  # what it meant before is still served
        if self.catalog.entries.get(entry.name) is entry:
            self._changed((entry.name,))
