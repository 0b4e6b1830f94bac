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
    that, until whoever looks at them has emptied them; `changes` counts.

    What a call brought about is known by its answer (`note`), which frames that were on their way may contradict: that a name went is then
    believed only where no frame says otherwise for a while.
    """

    def __init__(self) -> None:
        self.entries: dict[str, AdapterInfo] = {}
        self.known = asyncio.Event()
        self.came: set[str] = set()
        self.gone: set[str] = set()
        self.changes = 0
        self._noted: set[str] = set()  # names that no frame has told of since
        self._uses: Mapping[bytes, AdapterUse] = {}
        self._load: Load | None = None  # of which _uses were made

    def take(self, state: AdapterState) -> None:
        """What is new, and what went."""
        self._load = None
        self.changes += 1
        for name in state.removed:
            if name in self._noted:
                asyncio.get_running_loop().call_later(DOUBT_SECONDS, self._doubted, name)
            else:
                self._remove(name)
        for info in state.entries:
            self._noted.discard(info.name)
            self._enter(info)
        if state.complete:
            self.known.set()

    def note(self, info: AdapterInfo) -> None:
        """A call's answer."""
        self._load = None
        self.changes += 1
        self._noted.add(info.name)
        self._enter(info)

    def note_gone(self, name: str) -> None:
        """A call's answer."""
        self._noted.discard(name)
        self.take(AdapterState(removed=(name,)))

    def _doubted(self, name: str) -> None:
        if name in self._noted:
            self.note_gone(name)

    def _enter(self, info: AdapterInfo) -> None:
        if info.name not in self.entries:
            self._moved(info.name, self.came, self.gone)
        self.entries[info.name] = info

    def _remove(self, name: str) -> None:
        if self.entries.pop(name, None) is not None:
            self._moved(name, self.gone, self.came)

    def _moved(self, name: str, into: set[str], out: set[str]) -> None:
        out.discard(name)
        if self.known.is_set():
            into.add(name)

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
