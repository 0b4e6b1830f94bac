"""One version of an adapter, as bytes loaded. Imports no torch: what the weights are only the reader and the device know."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Version:
    """In host memory, where it takes `bytes`. `digest` is SHA-256 over what was loaded, `rank` the largest of its modules."""

    digest: bytes
    rank: int
    bytes: int
    weights: Any


class Device(Protocol):
    """Slots. Both calls may take a while, and come from one thread in order; steps run meanwhile, and none names the slot."""

    def install(self, slot: int, weights: Any) -> None:
        """Raises ValueError where they do not fit."""

    def clear(self, slot: int) -> None:
        """Give the slot's memory back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterParts:
    """What serving adapters needs of a model. `read(directory, most)` reads one of at most so many bytes; it raises OctavoErrors, and runs
    on a thread of which `prepare` is called once, first.

    `directory` is looked at every `scan_seconds`; `host_bytes` is for versions in host memory.
    """

    slots: int
    host_bytes: int
    read: Callable[[Path, int], Version]
    device: Device
    directory: Path | None = None
    scan_seconds: float = 5.0
    prepare: Callable[[], None] = lambda: None
