"""vLLM's CPU build beside our engine with eight adapters, the same files for both, in turns on a few requests (its adapters are slow)."""

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo import demo_adapters
from octavo.bench.adapters.engine import AdaptedEngine, Ask
from octavo.bench.peers import programs
from octavo.bench.peers.contest import write_workload
from octavo.bench.peers.processes import Program, ProgramFailed, command_line, run
from octavo.bench.workload import Item, Probes, Workload
from shared.errors import Unavailable
from worker.adapters.version import Version
from worker.assemble import Parts
from worker.sources.open import open_checkpoint

RANKS = (8, 8, 8, 8, 16, 16, 16, 16)
RUNNING = 96  # as the peer's program has it
_REQUESTS, _OUTPUT = 16, 32
_TIMEOUT_S = 900.0
_NAMES = ("output_throughput", "ttft_ms", "decode_tokens_per_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """Where its environment and its program are."""

    home: Path
    scripts: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "vllm" / "bin" / "python"

    @property
    def model(self) -> Path:
        """The model that it reads."""
        return self.home / "models" / "smollm2-135m"


def found() -> Peer:
    """Raises Unavailable where it is not installed."""
    peer = Peer(home=programs.home(os.environ), scripts=programs.scripts(os.environ))
    for path in (peer.python, peer.model, peer.scripts / "vllm_offline.py"):
        if not path.exists():
            raise Unavailable(
                f"vLLM is not installed for this: {path} is missing (PEERS_HOME and OCTAVO_SHARED name its places)"
            )
    return peer


def short(workload: Workload) -> Workload:
    """A few requests of few tokens, and one probe of each kind."""
    items = tuple(
        Item(prompt=item.prompt, output_tokens=min(_OUTPUT, item.output_tokens))
        for item in workload.first(_REQUESTS).items
    )
    probes = Probes(prefill=workload.probes.prefill[:1], decode=workload.probes.decode[:1])
    return Workload(name=f"{workload.name}, cut short", items=items, probes=probes)


@contextmanager
def _home(peer: Peer) -> Iterator[Path]:
    """A home as its program wants it: the model, and eight adapters."""
    base = demo_adapters.base_of(open_checkpoint(str(peer.model)).checkpoint)
    with TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        models.mkdir()
        (models / peer.model.name).symlink_to(peer.model)
        for number, rank in enumerate(RANKS):
            demo_adapters.write(
                models / "loras" / f"ad{number}", base, demo_adapters.Adapter(rank=rank, seed=1000 + number)
            )
        yield Path(folder)


def measure(
    parts: Parts, read: Callable[[Path], Version], workload: Workload, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Rounds of ours and theirs. What fails of theirs is told, and ends them. Raises Unavailable."""
    peer, mix = found(), short(workload)
    rows: list[dict[str, Any]] = []
    failed = ""
    with _home(peer) as home:
        versions = [read(home / "models" / "loras" / f"ad{number}") for number in range(len(RANKS))]
        engine = AdaptedEngine(
            parts,
            versions,
            max_adapters=len(RANKS),
            max_running=min(RUNNING, parts.scheduler.max_running),
            prefix_cache=False,
        )
        try:
            for _ in range(rounds):
                rows.append({"ours": _ours(engine, mix), "theirs": _theirs(peer, home, mix)})
                progress(f"beside vLLM: {rows[-1]}")
        except ProgramFailed as error:
            failed = str(error)
        finally:
            engine.close()
    return {
        "requests": len(mix.items),
        "ranks": list(RANKS),
        "failed": failed,
        "compared": _compared(rows),
        "rounds": rows,
    }


def _ours(engine: AdaptedEngine, mix: Workload) -> dict[str, float]:
    """As its program measures itself: short requests first, which do not count."""
    _alone(engine, Item(prompt=mix.items[0].prompt, output_tokens=8))
    ttft = [1000 * _alone(engine, item) for item in mix.probes.prefill]
    rates = []
    for item in mix.probes.decode:
        first = _alone(engine, Item(prompt=item.prompt, output_tokens=1))
        rates.append((item.output_tokens - 1) / (_alone(engine, item) - first))
    whole = engine.run([Ask(item=item, adapter=number % len(RANKS)) for number, item in enumerate(mix.items)])
    figures = (whole.tokens_per_s, *(statistics.median(values) if values else 0.0 for values in (ttft, rates)))
    return {name: round(value, 2) for name, value in zip(_NAMES, figures, strict=True)}


def _alone(engine: AdaptedEngine, item: Item) -> float:
    return engine.run([Ask(item=item, adapter=0)]).seconds


def _theirs(peer: Peer, home: Path, mix: Workload) -> dict[str, float]:
    path = write_workload(mix, home / "workload.json")
    env = {"PEERS_HOME": str(home), "WORKLOAD": str(path), "LORA": "1"}
    told = programs.told_offline(
        run(Program(command=command_line(peer.python, peer.scripts / "vllm_offline.py", 1), env=env), _TIMEOUT_S)
    )
    return {name: told[name] for name in _NAMES}


def _compared(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {
            "ours": statistics.median(row["ours"][name] for row in rows),
            "theirs": statistics.median(row["theirs"][name] for row in rows),
            "ratio": round(statistics.median(row["ours"][name] / row["theirs"][name] for row in rows), 3),
        }
        for name in (_NAMES if rows else ())
        if all(row["ours"][name] and row["theirs"][name] for row in rows)
    }
