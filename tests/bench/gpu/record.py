"""What is kept of a run: parts as they end, for the next run to go on from, and a table of them for people."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tests.bench.gpu.bed import Bed, Row, Rows

ROOT = Path(__file__).resolve().parents[3]
NAME = "gpu_check"
_SOURCES = ("kernels", "worker", "shared", "tests/bench/gpu")


def facts(bed: Bed) -> Row:
    """What figures hold for: the machine, the versions, the sources."""
    gpu: Row = {"arch": bed.arch.name, "tiles": bed.arch.table, "units": bed.arch.units, "dry": bed.dry}
    if not bed.dry:
        of = torch.cuda.get_device_properties(bed.device)
        gpu |= {"gpu": of.name, "memory_gib": round(of.total_memory / 2**30, 1)}
    return {
        **gpu,
        "commit": _commit(),
        "sources": sources(),
        "versions": _versions(),
        "tile_digest": bed.free.tiles.digest,
    }


def sources(root: Path = ROOT) -> str:
    """A digest of everything that runs, for a checkout without its history."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _commit() -> str | None:
    try:
        told = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("torch", "triton", "transformers", "safetensors", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "cuda": torch.version.cuda, "hip": torch.version.hip}


@dataclass(kw_only=True)
class Record:
    """`parts` by name: seconds, rows and, of one that failed, the error."""

    facts: Row
    parts: dict[str, Row] = field(default_factory=dict)
    rates: Row = field(default_factory=dict)

    def take_over(self, path: Path) -> str:
        """Parts that ended in an earlier run of the same sources on the same machine; why none, where none are."""
        try:
            held = _held(path)
        except (OSError, ValueError, RecursionError) as error:
            return f"{path} is no record of an earlier run ({error}): all parts run again"
        changed = [name for name in self.facts if held["facts"].get(name) != self.facts[name] and name != "commit"]
        if changed:
            return f"{path} is of another {', '.join(changed)}: all parts run again"
        self.rates |= held["rates"]
        self.parts |= {name: part for name, part in held["parts"].items() if not part.get("error")}
        return f"{path}: {', '.join(self.parts) or 'nothing'} taken over"

    def write(self, folder: Path) -> None:
        """gpu_check.json and gpu_check.md."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {"facts": self.facts, "rates": self.rates, "parts": self.parts}
        _replace(folder / f"{NAME}.json", json.dumps(told, indent=1) + "\n")
        _replace(folder / f"{NAME}.md", "\n".join(self.lines()) + "\n")

    def wrong(self) -> list[Row]:
        """Rows of checks that do not hold."""
        return [row for part in self.parts.values() for row in part["rows"] if row.get("equal") is False]

    def failed(self) -> list[str]:
        """Parts that ended by an error."""
        return [name for name, part in self.parts.items() if part.get("error")]

    def lines(self) -> Iterator[str]:
        """The record as Markdown."""
        yield "# GPU check" + (" (dry: toy sizes, interpreted; times mean nothing)" if self.facts["dry"] else "")
        yield ""
        yield from (f"- {name}: {_value(value)}" for name, value in {**self.facts, **self.rates}.items())
        yield f"- checks that do not hold: {len(self.wrong())}; parts that failed: {', '.join(self.failed()) or 'none'}"
        yield from _aims(self.parts)
        for name, part in self.parts.items():
            yield from ("", f"## {name} ({part['seconds']:.1f} s)", "")
            if part.get("error"):
                yield from ("```", part["error"], "```")
            yield from table(part["rows"])


def _held(path: Path) -> dict[str, Row]:
    """What was written there. ValueError where it is something else."""
    held = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(held, dict) or not all(isinstance(held.get(name), dict) for name in ("facts", "rates", "parts")):
        raise ValueError("it lacks facts, rates or parts")
    if strange := [name for name, part in held["parts"].items() if not _is_part(part)]:
        raise ValueError(f"its parts {', '.join(strange)} are none")
    return held


def _is_part(part: object) -> bool:
    """See Record."""
    if not isinstance(part, dict) or not isinstance(part.get("seconds"), int | float):
        return False
    rows = part.get("rows")
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, wherever a run is ended."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _aims(parts: dict[str, Row]) -> Iterator[str]:
    aimed = [(name, row) for name, part in parts.items() for row in part["rows"] if row.get("aim") is not None]
    if not aimed:
        return
    yield from ("", f"## Aims: {sum(bool(row['reached']) for _, row in aimed)} of {len(aimed)} reached", "")
    for name, row in aimed:
        known = {key: value for key, value in row.items() if value is not None and key not in ("aim", "reached")}
        told = ", ".join(f"{key} {_value(value)}" for key, value in known.items())
        yield f"- {'reached' if row['reached'] else 'MISSED'} ({_value(row['aim'])}): {name}: {told}"


def table(rows: Rows) -> Iterator[str]:
    """Rows of equal keys under one head, in order."""
    head: list[str] = []
    for row in rows:
        if list(row) != head:
            yield from ([""] if head else [])
            head = list(row)
            yield "| " + " | ".join(head) + " |"
            yield "|" + " --- |" * len(head)
        yield "| " + " | ".join(_value(value) for value in row.values()) + " |"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
