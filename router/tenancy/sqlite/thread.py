"""A database's own thread. Steps that wait are done in one transaction, so that many cost one commit; each is atomic all the same."""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from router.tenancy.sqlite.schema import Link
from shared.errors import InvalidRequest, OctavoError, Unavailable

T = TypeVar("T")
Step = Callable[[sqlite3.Connection], T]

MOST = 256  # steps of one transaction

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True, eq=False)
class _Asked:
    step: Step[Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def _told(error: Exception) -> Exception:
    """As callers may see it. Logged, where it is the store's fault or ours."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidRequest("a name must hold whole characters, which UTF-8 can write")
    if isinstance(error, sqlite3.Error | OSError) and not isinstance(error, sqlite3.IntegrityError):
        _LOG.error("the store: %s", error)
        return Unavailable("the store of tenants cannot be reached now", retry_after=1.0)
    if not isinstance(error, OctavoError):
        _LOG.error("a step of the store failed", exc_info=error)
    return error


def _usable(link: Link) -> bool:
    """Whether its last transaction is over, or can be ended; else it is closed."""
    try:
        if link.db.in_transaction:
            link.db.execute("ROLLBACK")
    except sqlite3.Error:
        link.db.close()
        return False
    return True


class StoreThread:
    """Runs steps on its own connection. `begin` is IMMEDIATE for a thread that writes, DEFERRED for one that only reads.

    A connection that is of no use any more is made anew by the next steps: whatever befalls the database, the thread goes on. It never
    goes over to another file: with the log that the first one left, SQLite would make one of both.
    """

    def __init__(self, connect: Callable[[], Link], *, begin: str, name: str):
        self._begin = f"BEGIN {begin}"
        self._connect = connect
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._closed = False
        first = connect()  # what is wrong with the database is told to whoever opens it
        first.db.close()
        self._file = first.file
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def do(self, step: Step[T]) -> T:
        """What `step` gives, once it is committed. A step that raises has changed nothing. It must not begin or end transactions.

        Cancelling this call does not undo the step.
        """
        if self._closed:
            raise Unavailable("the store of tenants is closed")
        loop = asyncio.get_running_loop()
        asked = _Asked(step=step, loop=loop, future=loop.create_future())
        self._asked.put(asked)
        return await asked.future  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        """After every step that was asked."""
        if not self._closed:
            self._closed = True
            self._asked.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        link: Link | None = None
        last = False
        while not last and (first := self._asked.get()) is not None:
            batch, last = self._gather(first)
            link = self._done(link, batch)
            _tell(batch)
        if link is not None:
            link.db.close()

    def _done(self, link: Link | None, batch: list[_Asked]) -> Link | None:
        """Does the steps; the connection for the next ones, None where they need another."""
        try:
            if link is None or not _usable(link):
                link = None
                link = self._connect()
            link.require(self._file)
            self._transact(link.db, batch)
        except Exception as error:  # noqa: BLE001 - told to everyone who waits for this transaction
            told = _told(error)
            for asked in batch:
                asked.error = told
        return link

    def _gather(self, first: _Asked) -> tuple[list[_Asked], bool]:
        """What waits, and whether nothing comes after it."""
        batch = [first]
        while len(batch) < MOST:
            try:
                asked = self._asked.get_nowait()
            except queue.Empty:
                break
            if asked is None:
                return batch, True
            batch.append(asked)
        return batch, False

    def _transact(self, db: sqlite3.Connection, batch: list[_Asked]) -> None:
        db.execute(self._begin)
        for asked in batch:
            self._attempt(db, asked)
        db.execute("COMMIT")

    @staticmethod
    def _attempt(db: sqlite3.Connection, asked: _Asked) -> None:
        db.execute("SAVEPOINT step")
        try:
            asked.result = asked.step(db)
        except Exception as error:
            asked.error = _told(error)
            if not db.in_transaction:
                raise  # SQLite has rolled back all of it (the disk is full, ...)
            db.execute("ROLLBACK TO step")
        db.execute("RELEASE step")


def _tell(batch: list[_Asked]) -> None:
    """Each in its own loop, which may be gone."""
    for loop in {asked.loop for asked in batch}:
        mine = [asked for asked in batch if asked.loop is loop]
        try:
            loop.call_soon_threadsafe(partial(_tell_all, mine))
        except RuntimeError:
            _LOG.warning("%d steps of the store were done for a loop that has ended", len(mine))


def _tell_all(batch: list[_Asked]) -> None:
    for asked in batch:
        asked.tell()
