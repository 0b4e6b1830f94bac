"""What is known of adapters: names, the versions that they mean, and which versions are in host memory. Plain state, of one thread.

A version is kept while a name means it or a request holds it. Its weights are in host memory as long as the budget allows: the longest
unused leave first. What is pinned stays, and what requests hold but no name means any more, for nobody could read that again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.types import AdapterInfo, AdapterLevel
from worker.adapters.directory import Signature
from worker.adapters.errors import AdapterMemory
from worker.adapters.version import Version


@dataclass(kw_only=True, slots=True, eq=False)
class Held:
    """A version by digest: `names` mean it, `holds` requests that have not ended run on it. `version` is None while its weights are not in
    host memory, `source` where they can be read again."""

    digest: bytes
    source: str
    rank: int
    bytes: int
    version: Version | None = None
    names: set[str] = field(default_factory=set)
    holds: int = 0
    pins: int = 0  # names that are pinned
    used: int = 0
    ready: bool = False  # in a device slot


@dataclass(kw_only=True, slots=True, eq=False)
class Entry:
    """A name. `held` is None until it has been read; `signature` is of its files where it was found in the directory."""

    name: str
    source: str
    held: Held | None = None
    signature: Signature | None = None
    stale: bool = False  # its files have changed since
    pinned: bool = False
    loaded_unix_ms: int = 0
    error: Exception | None = None  # why the last attempt to read it failed

    @property
    def meaning(self) -> tuple[object, ...]:
        """Differs once the name means something else, or is to: a read that began before tells nothing of it then."""
        return self.source, self.signature, self.held


def info_of(entry: Entry) -> AdapterInfo:
    """As it is told."""
    held = entry.held
    level = AdapterLevel.SOURCE
    if held is not None and (held.ready or held.version is not None):
        level = AdapterLevel.DEVICE if held.ready else AdapterLevel.HOST
    return AdapterInfo(
        name=entry.name,
        digest=held.digest if held else b"",
        level=level,
        rank=held.rank if held else 0,
        bytes=held.bytes if held and held.version else 0,
        pinned=entry.pinned,
        loaded_unix_ms=entry.loaded_unix_ms,
        error=str(entry.error) if entry.error else "",
        source=entry.source,
        listed=entry.signature is not None,
    )


class Catalog:
    """`limit` is in bytes."""

    def __init__(self, limit: int):
        self.entries: dict[str, Entry] = {}
        self.versions: dict[bytes, Held] = {}
        self.limit = limit
        self.used = 0  # bytes of host memory
        self._uses = 0

    # ---- versions

    def version(self, digest: bytes) -> Held | None:
        """The version, if a name or a request has it."""
        return self.versions.get(digest)

    def touch(self, held: Held) -> None:
        """It is used now."""
        self._uses += 1
        held.used = self._uses

    def hold(self, held: Held) -> None:
        """A request runs on it."""
        held.holds += 1
        self.touch(held)

    def release(self, held: Held) -> None:
        """One of them has ended."""
        held.holds -= 1
        self._leave(held)

    def admit(self, version: Version, source: str, *, only_if_free: bool = False) -> Held:
        """A version that has been read. Its weights are in host memory from now on; with `only_if_free` only where nobody has to leave
        for them. Raises AdapterMemory, and changes nothing, where what could leave does not suffice.

        A new one is forgotten unless it is bound to a name at once.
        """
        held = self.versions.get(version.digest)
        if held is None:
            held = Held(digest=version.digest, source=source, rank=version.rank, bytes=version.bytes)
        if held.version is None and not (only_if_free and self.used + version.bytes > self.limit):
            self._make_room(version.bytes)
            held.version = version
            self.used += version.bytes
        self.versions[held.digest] = held
        self.touch(held)
        return held

    def _make_room(self, size: int) -> None:
        """What is idle leaves first, then what requests hold that can be read again."""
        able = [one for one in self.versions.values() if one.version is not None and not one.pins]
        able = [one for one in able if one.names or not one.holds]
        if self.used - sum(one.bytes for one in able) + size > self.limit:
            raise AdapterMemory(
                f"an adapter of {size} bytes finds no room: of {self.limit} bytes for adapters in host memory {self.used} are in use",
                retry_after=1.0,
            )
        for one in sorted(able, key=lambda one: (one.holds > 0, one.used)):
            if self.used + size <= self.limit:
                return
            self._evict(one)

    def _evict(self, held: Held) -> None:
        if held.version is not None:
            held.version = None
            self.used -= held.bytes

    def _leave(self, held: Held) -> None:
        """Forget it where nothing has it any more."""
        if not held.names and not held.holds and self.versions.get(held.digest) is held:
            self._evict(held)
            del self.versions[held.digest]

    # ---- names

    def bind(self, entry: Entry, held: Held, now_ms: int) -> Held | None:
        """The name means this version from now on. Returns the other one that it meant, if it did."""
        former, entry.error = entry.held, None
        if former is held:
            return None
        held.names.add(entry.name)
        held.pins += entry.pinned
        held.source, entry.held, entry.loaded_unix_ms = entry.source, held, now_ms
        return self._unbound(entry, former)

    def unbind(self, entry: Entry) -> Held | None:
        """The name means nothing any more. Returns the version that it meant, if it did."""
        former, entry.held = entry.held, None
        return self._unbound(entry, former)

    def _unbound(self, entry: Entry, former: Held | None) -> Held | None:
        if former is not None:
            former.names.discard(entry.name)
            former.pins -= entry.pinned
            self._leave(former)
        return former

    def pin(self, entry: Entry, pinned: bool) -> None:
        """Keep it in host memory, or not any more."""
        if entry.held is not None:
            entry.held.pins += pinned - entry.pinned
        entry.pinned = pinned

    @property
    def pinned(self) -> int:
        """Versions that are."""
        return sum(1 for held in self.versions.values() if held.pins)

    def names_of(self, digests: Iterable[bytes]) -> set[str]:
        """All names that mean one of these."""
        return {name for digest in digests if digest in self.versions for name in self.versions[digest].names}

    def infos(self) -> list[AdapterInfo]:
        """All entries, as they are told."""
        return [info_of(entry) for entry in self.entries.values()]

    def check_integrity(self) -> None:
        """Raises AssertionError naming what does not hold."""
        assert self.used == sum(one.bytes for one in self.versions.values() if one.version), (
            "catalog: bytes are miscounted"
        )
        for digest, one in self.versions.items():
            names = {entry.name for entry in self.entries.values() if entry.held is one}
            assert one.digest == digest, "catalog: a version under another's digest"
            assert one.names == names, "catalog: names and versions differ"
            assert one.names or one.holds, "catalog: a version that nothing has"
            assert one.pins == sum(1 for name in names if self.entries[name].pinned), "catalog: pins are miscounted"
