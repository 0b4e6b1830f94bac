"""The report of `octavo bench adapters`, and the same as tables."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from octavo.bench import machine


def report(model: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Figures with all that one must know to read them."""
    return {
        "tool": "octavo bench adapters",
        "model": model,
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        **told,
    }


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([_row(head), _row("---" for _ in head), *map(_row, rows)])


def _spread(values: Sequence[float]) -> str:
    return f"**{statistics.median(values):.3f}** ({min(values):.3f}-{max(values):.3f})"


def _case(case: Mapping[str, Any]) -> Iterator[object]:
    pairs = case["pairs"]
    yield f"{case['case']}, {case['running']} at a time"
    for name in ("base_tokens_per_s", "adapter_tokens_per_s"):
        yield f"{statistics.median(pair[name] for pair in pairs):.1f}"
    yield f"{statistics.median(pair['adapters_a_step'] for pair in pairs):.1f}"
    for name in ("retention", "bound", "share_of_bound"):
        yield _spread([pair[name] for pair in pairs])


def _parts(made: Mapping[str, Any]) -> Iterator[str]:
    adapter = made["adapter"]
    yield f"Rank {adapter['rank']}, {adapter['modules']}: {adapter['bytes'] / 1e6:.2f} MB each; {made['machine']['cpu']}"
    if made["cases"]:
        head = (
            "adapters / slots",
            "output tok/s without",
            "with",
            "adapters a step",
            "retained",
            "bound",
            "of the bound",
        )
        yield _table(head, map(_case, made["cases"]))
    if "idle" in made:
        pairs = made["idle"]["pairs"]
        medians = [statistics.median(pair[name] for pair in pairs) for name in ("without_slots", "with_slots")]
        rows = [[*(f"{value:.1f}" for value in medians), _spread([pair["ratio"] for pair in pairs])]]
        yield _table(("no adapters: output tok/s without slots", "with slots", "ratio"), rows)
    if "cliff" in made:
        yield _cliff(made["cliff"])
    if "vllm" in made:
        told = made["vllm"]
        rows = [[name, row["ours"], row["theirs"], f"**{row['ratio']:.2f}**"] for name, row in told["compared"].items()]
        yield (
            _table((f"eight adapters, {told['requests']} requests", "octavo", "vllm", "ours / theirs"), rows)
            + told["failed"]
        )


def _cliff(told: Mapping[str, Any]) -> str:
    names = [name for name in told["pairs"][0] if name != "ratio"]
    rows = []
    for name in names:
        runs = [pair[name] for pair in told["pairs"]]
        cells = [
            f"{statistics.median(run[key] for run in runs):.0f}" for key in ("median_ttft_ms", "p99_ttft_ms", "loads")
        ]
        rows.append([name, *cells, "" if name == names[0] else _spread([pair["ratio"] for pair in told["pairs"]])])
    head = (
        f"at {told['load']:.0%} of {told['capacity']:.2f} requests/s",
        "TTFT p50, ms",
        "TTFT p99, ms",
        "loads",
        "ratio of medians",
    )
    return _table(head, rows)


def markdown(made: Mapping[str, Any]) -> str:
    """All tables: medians over the pairs, with the least and the largest behind them."""
    return "\n\n".join(_parts(made)) + "\n"
