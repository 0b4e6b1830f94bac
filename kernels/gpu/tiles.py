"""The table of tiles: what each kernel's blocks measure, by architecture and, where it matters, head size.

`tiles.json` beside this holds, by architecture, by kernel, by size ("*" for any): the blocks' constants by name, `warps`
and `stages`. It was chosen by the compiled code's registers and shared memory; none of it was measured on a
GPU yet: `octavo bench kernels --tune` does that. Launches read it, or the file that OCTAVO_GPU_TILES names.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Any

from kernels.gpu.arch import Arch
from kernels.gpu.tile_rules import ANY, BadTiles, faults

DEFAULT = Path(__file__).with_name("tiles.json")
VARIABLE = "OCTAVO_GPU_TILES"
_MOST_BYTES = 1 << 20  # of a table: many times what it needs for every architecture there is


def in_use() -> Path:
    """The table that launches read."""
    return Path(os.environ.get(VARIABLE) or DEFAULT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """`blocks` are the kernel's constants by name."""

    blocks: Mapping[str, int]
    warps: int
    stages: int

    def __getitem__(self, name: str) -> int:
        return self.blocks[name]


class Tiles:
    """The tiles of one architecture."""

    def __init__(self, entries: Mapping[str, Mapping[str, Tile]]):
        self._entries = entries

    @classmethod
    def read(cls, arch: str, path: Path = DEFAULT) -> "Tiles":
        """From a table's file. BadTiles where it cannot be read, or what it has for the architecture cannot be used."""
        table = _table(path)
        if arch not in table:
            raise BadTiles(f"{path} has no tiles for {arch}; it has those for {', '.join(table) or 'nothing'}")
        if found := list(faults(arch, table[arch])):
            raise BadTiles(f"{path}: {'; '.join(found)}")
        return cls({kernel: {size: _tile(row) for size, row in rows.items()} for kernel, rows in table[arch].items()})

    @classmethod
    def of(cls, arch: Arch, path: Path) -> "Tiles":
        """Those of the GPU itself, where it was tuned, or of the architecture whose limits hold on it."""
        return cls.read(arch.name if arch.name in _table(path) else arch.table, path)

    def find(self, kernel: str, size: int | None = None) -> Tile:
        """The kernel's tile at that size, or its tile for any."""
        rows = self._entries[kernel]
        return rows.get(str(size)) or rows[ANY]

    @property
    def digest(self) -> str:
        """Hex digits that change with any tile: other tiles may sum in another order."""
        rows = sorted((kernel, size, repr(sorted(t.blocks.items())), t.warps, t.stages) for kernel, size, t in self)
        return blake2b(repr(rows).encode(), digest_size=6).hexdigest()

    def __iter__(self) -> Iterator[tuple[str, str, Tile]]:
        for kernel, rows in self._entries.items():
            for size, tile in rows.items():
                yield kernel, size, tile

    def replaced(self, kernel: str, size: str, tile: Tile) -> "Tiles":
        """With one tile changed (for tuning)."""
        rows = {**self._entries.get(kernel, {}), size: tile}
        return Tiles({**self._entries, kernel: rows})


def write(arch: str, tiles: Tiles, path: Path) -> None:
    """Put the architecture's tiles into the file, beside what it holds for others. The file is replaced whole, or left as it was: BadTiles
    where it cannot be written.
    """
    table = _table(path) if path.exists() else {}
    rows: dict[str, dict[str, dict[str, int]]] = {}
    for kernel, size, tile in tiles:
        rows.setdefault(kernel, {})[size] = {**tile.blocks, "warps": tile.warps, "stages": tile.stages}
    table[arch] = rows
    _replace(path, _text(table))


def begin(path: Path) -> None:
    """A file that begins as a copy of the package's, whole or not at all. BadTiles where it cannot be written."""
    _replace(path, DEFAULT.read_text(encoding="utf-8"))


def _replace(path: Path, text: str) -> None:
    """Through a name of this process's own, which is gone however this ends short of a kill. A link stays one."""
    path = path.resolve()
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a full disk may not show before
        new.replace(path)
    except OSError as error:
        raise BadTiles(f"the table of tiles {path} cannot be written: {error}") from error
    finally:
        new.unlink(missing_ok=True)


def _table(path: Path) -> dict[str, Any]:
    """BadTiles where the file is none."""
    try:
        table = json.loads(_content(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BadTiles(f"the table of tiles {path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise BadTiles(f"the table of tiles {path} is no object of architectures")
    return table


def _content(path: Path) -> str:
    """A pipe is not waited for, and what has no end not read."""
    facts = path.stat()
    if not S_ISREG(facts.st_mode):
        raise OSError("it is no regular file")
    if facts.st_size > _MOST_BYTES:
        raise OSError(f"it has {facts.st_size} bytes, and a table at most {_MOST_BYTES}")
    return path.read_text(encoding="utf-8")


def _tile(row: Mapping[str, int]) -> Tile:
    blocks = {name: value for name, value in row.items() if name not in ("warps", "stages")}
    return Tile(blocks=blocks, warps=row["warps"], stages=row["stages"])


def _text(table: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]) -> str:
    """JSON with one line a tile, so that a retuned table reads as a short difference."""
    archs = []
    for arch, kernels in table.items():
        lines = [
            f'    "{kernel}": {{\n'
            + ",\n".join(f'      "{size}": {json.dumps(row)}' for size, row in rows.items())
            + "\n    }"
            for kernel, rows in kernels.items()
        ]
        archs.append(f'  "{arch}": {{\n' + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(archs) + "\n}\n"
