"""One worker's adapters, as its AdapterState frames tell them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from router.placement.view import AdapterUse
from shared.types import AdapterInfo, AdapterLevel, AdapterState, Load


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRef:
    """The version that a request runs on: its canonical name, and its digest, empty where no worker has read it yet: then it is
    whichever the worker finds under the name."""

    name: str
    digest: bytes = b""

    @property
    def seed(self) -> bytes:
        """What stands for it in the prefix cache's hashes. A version that is not known yet shares nothing with the base model's."""
        return self.digest or b"?" + self.name.encode()


DOUBT_SECONDS = 1.0  # in which a worker's frames come to what its answer to a call has told already


class WorkerAdapters:
    """Lives as long as a connection. `known` is set once the whole catalog has been told. `came` and `gone` are names that did so after
    that, by others' doing, until whoever looks at them has emptied them; `changes` counts.

    What a call from here brought about is known by its answer (`note`, `note_gone`), which frames that were on their way may contradict:
    these are believed only where no frame says otherwise for a while.
    """

    def __init__(self) -> None:
        self.entries: dict[str, AdapterInfo] = {}
        self.known = asyncio.Event()
        self.came: set[str] = set()
        self.gone: set[str] = set()
        self.changes = 0
        self._noted: dict[str, AdapterInfo | None] = {}  # answers that no frame has confirmed yet
        self._doubts: dict[str, AdapterInfo | None] = {}  # what frames say against them, the last of each name
        self._uses: Mapping[bytes, AdapterUse] = {}
        self._load: Load | None = None  # of which _uses were made

    def take(self, state: AdapterState) -> None:
        """What is new, and what went."""
        for name in state.removed:
            self._hear(name, None)
        for info in state.entries:
            self._hear(info.name, info)
        if state.complete:
            self.known.set()

    def note(self, info: AdapterInfo) -> None:
        """A call's answer."""
        self._noted[info.name] = info
        self._set(info.name, info)

    def note_gone(self, name: str) -> None:
        """A call's answer."""
        self._noted[name] = None
        self._set(name, None)

    def _hear(self, name: str, info: AdapterInfo | None) -> None:
        if name not in self._noted or _equal(self._noted[name], info):
            self._noted.pop(name, None)
            self._doubts.pop(name, None)
            self._news(name, info)
            return
        if name not in self._doubts:
            asyncio.get_running_loop().call_later(DOUBT_SECONDS, self._believe, name)
        self._doubts[name] = info

    def _believe(self, name: str) -> None:
        if name in self._doubts:
            self._noted.pop(name, None)
            self._news(name, self._doubts.pop(name))

    def _news(self, name: str, info: AdapterInfo | None) -> None:
        there = name in self.entries
        self._set(name, info)
        if self.known.is_set() and there != (info is not None):
            (self.gone if there else self.came).add(name)

    def _set(self, name: str, info: AdapterInfo | None) -> None:
        self._load = None
        self.changes += 1
        if info is None:
            self.entries.pop(name, None)
            self.came.discard(name)
        else:
            self.entries[name] = info
            self.gone.discard(name)

    def has(self, ref: AdapterRef) -> bool:
        """Whether a request for this version may be sent here: one that has not been read yet may be it."""
        info = self.entries.get(ref.name)
        return info is not None and (not info.digest or not ref.digest or info.digest == ref.digest)

    def uses(self, load: Load) -> Mapping[bytes, AdapterUse]:
        """What placement knows of the versions that have work here, had some lately, or stand in a slot."""
        if self._load is not load:
            ready = {info.digest for info in self.entries.values() if info.level is AdapterLevel.DEVICE}
            uses = dict.fromkeys(ready, AdapterUse(0, 0, 0.0, True))
            for told in load.adapters:
                use = AdapterUse(told.running, told.waiting, told.idle_ms / 1000, told.digest in ready)
                uses[told.digest] = use
            self._uses, self._load = uses, load
        return self._uses


def _equal(noted: AdapterInfo | None, told: AdapterInfo | None) -> bool:
    """Whether a frame tells what an answer did, as far as that goes."""
    if noted is None or told is None:
        return noted is told
    return noted.digest == told.digest
