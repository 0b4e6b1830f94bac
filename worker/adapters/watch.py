"""Looks at the adapter directory now and again: new adapters get their names, changed ones are read again, and what is gone is unloaded."""

import asyncio
import logging
from functools import partial
from pathlib import Path

from shared.errors import OctavoError
from worker.adapters.catalog import Entry
from worker.adapters.directory import Found, scan
from worker.adapters.jobs import Urgency
from worker.adapters.library import Library

_LOG = logging.getLogger("octavo.worker")


class DirectoryWatch:
    """Owns the names that the directory gives; those that an operator loaded from elsewhere it leaves alone."""

    def __init__(self, library: Library, root: Path, seconds: float):
        self.looked = asyncio.Event()  # once, at least
        self._library = library
        self._root = root
        self._seconds = seconds

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - a fault of ours must not end the watching, nor keep the worker from its work
                _LOG.exception("the adapter directory %s was not looked at", self._root)
            self.looked.set()
            await self._survey()
            await asyncio.sleep(self._seconds)

    async def look(self) -> None:
        """Take the directory as it is now."""
        try:
            found = await self._library.run(partial(scan, self._root), Urgency.SOON)
        except OSError as error:
            _LOG.warning("the adapter directory %s cannot be read: %s", self._root, error.strerror)
            return
        for entry in list(self._library.catalog.entries.values()):
            if entry.signature is not None and entry.name not in found:
                _LOG.info("adapter %s is gone from the directory", entry.name)
                self._library.remove(entry)
        for one in found.values():
            self._take(one)
        for name in self._library.unloaded.keys() - found.keys():
            del self._library.unloaded[name]  # its files are gone: others may come

    def _take(self, found: Found) -> None:
        library = self._library
        entry = library.catalog.entries.get(found.name)
        if entry is None:
            if library.unloaded.get(found.name, ()) != found.signature:
                library.list(library.entry_of(found))
        elif entry.signature is not None and entry.signature != found.signature:
            library.relist(entry, found)

    async def _survey(self) -> None:
        """Read what has not been, so that its version is known before anyone asks; weights stay where there is room."""
        for entry in list(self._library.catalog.entries.values()):
            if self._unread(entry):
                try:
                    await self._library.survey(entry)
                except OctavoError:
                    continue  # it stands in the entry

    @staticmethod
    def _unread(entry: Entry) -> bool:
        return entry.signature is not None and entry.error is None and (entry.held is None or entry.stale)
