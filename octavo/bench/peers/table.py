"""The report for people, as Markdown."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_HOW = {"transformers": ", one request at a time"}  # which is how its program runs them
_OFFLINE = {
    "output_throughput": ("output tok/s, all at once", 1.0),
    "decode_tokens_per_s": ("one stream, tok/s", 1.0),
    "ttft_ms": ("TTFT, long prompt, ms", 1.0),
    "start_s": ("start, s", 1.0),
    "peak_rss_bytes": ("peak RSS, GB", 1e9),
}
_LOAD = {
    "output_throughput": "output tok/s",
    "median_ttft_ms": "TTFT p50, ms",
    "p99_ttft_ms": "TTFT p99, ms",
    "median_tpot_ms": "TPOT p50, ms",
    "p99_itl_ms": "ITL p99, ms",
}


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    yield _row(head)
    yield _row("---" for _ in head)
    yield from map(_row, rows)


def _cells(compared: Mapping[str, Mapping[str, float]], side: str, columns: Mapping[str, float]) -> list[str]:
    cells = []
    for name, unit in columns.items():
        row = compared.get(name)
        if row is None:
            cells.append("-")
        elif side == "ratio":
            cells.append(f"**{row['ratio']:.2f}** ({row['least_ratio']:.2f}-{row['largest_ratio']:.2f})")
        else:
            cells.append(f"{row[side] / unit:.4g}")
    return cells


def _three(label: str, peer: str, compared: Mapping[str, Any], columns: Mapping[str, float]) -> Iterator[list[str]]:
    """Ours, theirs, and the ratio."""
    yield [f"octavo beside {peer}{label}", *_cells(compared, "ours", columns)]
    yield [f"{peer}{_HOW.get(peer, '')}{label}", *_cells(compared, "theirs", columns)]
    yield ["ours / theirs", *_cells(compared, "ratio", columns)]


def _failure(it: Mapping[str, Any], columns: int) -> Iterator[list[str]]:
    if it["failed"]:
        yield [f"{it['peer']}: failed", " ".join(it["failed"].split())[-200:].replace("|", "/"), *[""] * (columns - 1)]


def _offline(contests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    units = {name: unit for name, (_, unit) in _OFFLINE.items()}
    rows: list[list[str]] = []
    for it in contests:
        rows += _three("", it["peer"], it["compared"], units) if it["compared"] else ()
        rows += _failure(it, len(units))
    yield from _table(["engine", *(title for title, _ in _OFFLINE.values())], rows)


def _loads(contests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    units = dict.fromkeys(_LOAD, 1.0)
    rows: list[list[str]] = []
    for it in contests:
        for level, compared in it["at"].items():
            rows += _three(f", {level} at a time", it["peer"], compared, units)
        rows += _failure(it, len(units))
    yield from _table(["side", *_LOAD.values()], rows)


def _shares(contests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Who used the processors, and what is left of the engine's own throughput."""
    rows = []
    for it in contests:
        for side in ("ours", "theirs"):
            rows += [_busy(it, side, level) for level in it["at"]]
    yield from _table(["server", "at a time", "cores busy (share of CPU)", "of the engine's output tok/s"], rows)


def _busy(it: Mapping[str, Any], side: str, level: str) -> list[str]:
    runs = [turn[side]["at"][level] for turn in it["rounds"]]
    roles = runs[0]["cores_busy"]
    parts = [
        f"{role} {statistics.median(run['cores_busy'][role] for run in runs):.2f} "
        f"({statistics.median(run['cpu_share'][role] for run in runs):.0%})"
        for role in roles
    ]
    share = f"{statistics.median(it['share_of_engine'][level]):.0%}" if side == "ours" else "-"
    return ["octavo" if side == "ours" else it["peer"], level, ", ".join(parts), share]


def _probes(report: Mapping[str, Any]) -> Iterator[str]:
    seen = [
        each for it in (*report["offline"], *report["serving"]) for turn in it["rounds"] for each in turn["machine"]
    ]
    rows = []
    for name in seen[0] if seen else ():
        values = [each[name] for each in seen]
        rows.append([name, *(f"{value:g}" for value in (statistics.median(values), min(values), max(values)))])
    yield from _table(["machine's probe", "median", "least", "largest"], rows)


def markdown(report: Mapping[str, Any]) -> str:
    """All tables. Figures are medians over the rounds; ratios are medians of each round's own ratio, with the least and the largest."""
    parts = [_probes(report)]
    if report["offline"]:
        parts.append(_offline(report["offline"]))
    if any(it["at"] for it in report["offline"]):
        parts.append(_loads([it for it in report["offline"] if it["at"]]))
    if report["serving"]:
        parts += [_loads(report["serving"]), _shares(report["serving"])]
    title = (
        f"{report['workload']}, {report['requests']} requests, {report['rounds']} rounds; {report['machine']['cpu']}"
    )
    return "\n\n".join([title, *("\n".join(part) for part in parts)]) + "\n"
