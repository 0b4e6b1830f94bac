"""The database's tables, and how a connection to it is made. What a table's columns mean stands with the records that they hold."""

import contextlib
import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

VERSION = 5
BUSY_SECONDS = 10.0  # how long a writer waits for another process's step

# `spent`: what a tenant used of one quantity in one slice of time. A slice's row is taken over, `SLOTS` slices later, by another.
# `leases`: reservations that are not settled; `held` are output tokens reserved and not used yet, null where nothing bounds them.
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tenants (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE keys (
    prefix TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, salt BLOB NOT NULL, digest BLOB NOT NULL, scopes TEXT NOT NULL,
    created REAL NOT NULL, expires REAL, UNIQUE (tenant, name)
) WITHOUT ROWID;
CREATE TABLE adapters (
    tenant TEXT NOT NULL, name TEXT NOT NULL, source TEXT NOT NULL, digest BLOB NOT NULL, pinned INTEGER NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE TABLE spent (
    tenant TEXT NOT NULL, kind INTEGER NOT NULL, slot INTEGER NOT NULL, slice INTEGER NOT NULL, amount INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, slot)
) WITHOUT ROWID;
CREATE TABLE leases (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, adapter TEXT NOT NULL, slice INTEGER NOT NULL,
    started REAL NOT NULL, renewed REAL NOT NULL, expires REAL NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL,
    output INTEGER NOT NULL, held INTEGER, by_request INTEGER NOT NULL, by_prompt INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_tenant ON leases (tenant, expires, held);
CREATE INDEX leases_expires ON leases (expires);
CREATE TABLE ledger (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    adapter TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    finish TEXT NOT NULL, worker TEXT NOT NULL, started REAL NOT NULL, time REAL NOT NULL
);
CREATE INDEX ledger_tenant ON ledger (tenant, time);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE TRIGGER ledger_keeps BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_stands BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER audit_keeps BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_stands BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
"""


# What each version has that the one before had not.
_PREFIXES = "CREATE TABLE prefixes (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID"
_MODEL = "ALTER TABLE adapters ADD COLUMN model TEXT NOT NULL DEFAULT ''"
_ORIGIN = "ALTER TABLE audit ADD COLUMN origin TEXT NOT NULL DEFAULT ''"
_BEFORE = "ALTER TABLE audit ADD COLUMN before TEXT NOT NULL DEFAULT ''"
_ADDED = {2: _PREFIXES, 3: _MODEL, 4: _ORIGIN, 5: _BEFORE}


class WrongVersion(ValueError):
    """The database was made by another version of this program, or by another one."""


@dataclass(frozen=True, slots=True)
class Link:
    """A connection, and the file that it is to."""

    db: sqlite3.Connection
    path: Path
    file: tuple[int, int]  # device and inode

    def require(self, file: tuple[int, int]) -> None:
        """Raises OSError where it is to another file than that, or the file was deleted or replaced: what is written to one that was,
        nobody finds again."""
        if self.file != file or _file(self.path) != file:
            raise OSError(f"{self.path} was deleted or replaced; put it back, or start anew")


def _file(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def make(path: Path) -> None:
    """The database, where there is none, readable by its owner alone. Raises what `connect` raises."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    connect(path).db.close()


def connect(path: Path) -> Link:
    """A connection of one thread's own to a database that is there: a router whose store was deleted must not go on with an empty one,
    which lets everybody in.

    With a write-ahead log and `synchronous` NORMAL, what was committed outlives any process; a machine that loses its power may lose the
    last commits, and nothing else. Raises sqlite3.Error or OSError, and WrongVersion.

    A file that is there is never opened but by SQLite: closing it would drop the locks that this process's other connections have on it
    (POSIX, fcntl), and other processes would take the log away from under them.
    """
    file = _file(path)
    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256)
    try:
        _require_ours(db)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        _make(db)
        if file is None or file != _file(path):
            raise OSError(f"{path} was replaced while it was opened")
    except BaseException:
        db.close()
        raise
    return Link(db=db, path=path, file=file)


def _require_ours(db: sqlite3.Connection) -> None:
    """Raises WrongVersion where another program's tables are there: nothing is to be added to those."""
    db.execute("BEGIN")  # both at one moment: another process may be making them
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version = _version(db)
    db.execute("COMMIT")
    if bool(tables) != (version > 0) or (tables and not tables >= {"meta", "tenants", "ledger"}):
        raise WrongVersion("the file is another program's database")


def _make(db: sqlite3.Connection) -> None:
    """The tables, unless they are there; those of an earlier version get what they lack. Of two processes, the second finds it done."""
    if _version(db) < VERSION:
        db.execute("BEGIN IMMEDIATE")
        _bring_up(db, _version(db))
        db.execute("COMMIT")
    if _version(db) != VERSION:
        raise WrongVersion(f"the store has version {_version(db)}; this program needs {VERSION}")


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _bring_up(db: sqlite3.Connection, version: int) -> None:
    if version == 0:
        _create(db)
        version = 1
    for later in range(version + 1, VERSION + 1):
        db.execute(_ADDED[later])
    db.execute(f"PRAGMA user_version = {max(version, VERSION)}")


def _create(db: sqlite3.Connection) -> None:
    statement = ""
    for line in _TABLES.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            db.execute(statement)
            statement = ""
    first = {"revision": 1, "tenancy": 0, "secret": secrets.token_bytes(32)}
    db.executemany("INSERT INTO meta VALUES (?, ?)", first.items())
