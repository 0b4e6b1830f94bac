"""Host memory: what unloaded adapters took is given back, to the process too."""

import asyncio
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from shared.types import RejectCode
from tests.fakes import adapters as fakes
from worker.adapters.library import Library
from worker.adapters.peft import read
from worker.adapters.version import AdapterParts, Version

RANK = 20_000  # 1.8 MB of weights a module


class NoEngine:
    """Hears of everything and does nothing."""

    def adapter_loaded(self, slot: int) -> None: ...
    def adapter_failed(self, slot: int, code: RejectCode, message: str) -> None: ...
    def forget_adapter(self, digest: bytes) -> None: ...
    def remember_adapter(self, digest: bytes) -> None: ...
    def pin_adapter(self, digest: bytes, pinned: bool) -> None: ...


class NoDevice:
    """Nothing is installed here."""

    def install(self, slot: int, weights: Any) -> None: ...
    def clear(self, slot: int) -> None: ...


def ignore(_names: Iterable[str]) -> None: ...


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_c2_the_process_is_no_larger_after_200_loads_and_unloads(tmp_path: Path) -> None:
    base = fakes.base(RANK)

    def read_one(directory: Path, most: int) -> Version:
        return read(directory, base, most)

    parts = AdapterParts(slots=1, host_bytes=64 << 20, read=read_one, device=NoDevice())
    library = Library(parts, NoEngine(), ignore)
    held = {key: torch.zeros_like(value) for key, value in fakes.tensors(RANK).items()}
    sources = [fakes.write(tmp_path / str(n), held=held, rank=RANK, lora_alpha=n + 1) for n in range(2)]

    async def some(count: int) -> int:
        for number in range(count):
            name = f"a{number % 4}"
            await library.load(name, str(sources[number % 2]), replace=True, pin=False)
            await library.unload(name)
        assert (library.catalog.used, library.catalog.versions) == (0, {})
        return resident()

    before = await some(20)
    after = await some(200)
    size = sum(value.nbytes for value in held.values())
    assert size > 5 << 20
    assert after - before < 3 * size
    assert await library.close(10)
    await asyncio.sleep(0)
