"""What an operator is told of an adapter: what its name means, and how it is at each worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.tenancy.caller import Caller
from shared.types import AdapterInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterAt:
    """At one worker. `info` is None where it has none of this name; `error` says why it has not what the name means, if that is known."""

    worker: str
    info: AdapterInfo | None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterReport:
    """A name at the workers of a model that are connected. `digest` (empty: nobody has read it yet), `rank`, `bytes` and `loaded_unix_ms`
    are of the version that requests get. `registered`: it was loaded or pinned at run time, and workers that come are told. `source` is
    empty where the caller may not know it."""

    name: str
    model: str
    digest: bytes
    rank: int
    bytes: int
    pinned: bool
    loaded_unix_ms: int
    registered: bool
    source: str
    workers: Sequence[AdapterAt]


class AdapterOperator(Protocol):
    """Changes and lists adapters. Raises OctavoErrors only.

    A caller needs the scope adapters, for its tenant's own, or admin. Names are canonical, or without `tenant/` the tenant's own. `model`
    is a served name; empty where only one is served. What the caller must not see is answered as what does not exist.
    """

    def list(self, caller: Caller, *, model: str = "") -> Sequence[AdapterReport]:
        """All that the caller sees, by model and name."""

    def get(self, caller: Caller, name: str, *, model: str = "") -> AdapterReport:
        """One of these. Where no `model` is given and several have it, the first."""

    async def load(
        self, caller: Caller, name: str, source: str, *, model: str = "", replace: bool = False, pin: bool = False
    ) -> AdapterReport:
        """Load it at every worker of the model, or at none. `source` empty: the adapter directory's."""

    async def unload(self, caller: Caller, name: str, *, model: str = "") -> str:
        """Unload it from every worker; its canonical name. What runs ends on it."""

    async def pin(self, caller: Caller, name: str, pinned: bool, *, model: str = "") -> AdapterReport:
        """Keep it in every worker's memory, or not any more. For admins alone: what is pinned takes room from everyone."""
