"""Writes the tables of docs/performance.md from the reports in docs/results: `python -m tools.figures`.

A table stands between `<!-- figures: NAME, ... -->` and `<!-- end: NAME -->`, and is replaced as a whole by what docs/results/NAME.json
tells. What has no report is left as it is.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_PLACE = re.compile(r"(<!-- figures: (\w+)[^>]*-->\n)(?:.*?(<!-- end: \2 -->\n))?", re.DOTALL)
_Table = Callable[[dict[str, Any]], str]


def _sweep(report: dict[str, Any]) -> str:
    from octavo.bench.sweep import markdown

    return markdown(report["steps"]) + "\n![A step's time as batch, context and prompt grow](results/step-time.svg)\n"


def _kernels(report: dict[str, Any]) -> str:
    from octavo.bench.kernels.measure import markdown

    return markdown(report["kernels"])


def _bitwise(report: dict[str, Any]) -> str:
    from octavo.bench.bitwise import markdown

    return markdown(report["products"])


def _engine(report: dict[str, Any]) -> str:
    head = (
        "output tok/s",
        "of the bound",
        "of it as scheduled",
        "decode steps, s",
        "mixed steps, s",
        "between steps, s",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for run in report["runs"]:
        bound, steps = run["bound"], run["steps"]
        cells = (
            f"{run['output_throughput']:.0f}",
            f"{bound['share_reached']:.0%}",
            f"{bound['share_of_as_scheduled']:.0%}",
            f"{steps['decode']['seconds']:.2f}",
            f"{steps['mixed']['seconds']:.2f}",
            f"{steps['outside_s']:.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    probes, weights, peak = report["probes"], report["weight_bytes"], report["peak_rss_bytes"]
    lines += [
        "",
        f"One stream: {probes['decode_tokens_per_s']:.1f} tokens/s, {probes['share_of_read_bound']:.0%} of what reading the weights "
        "allows. "
        f"TTFT of {probes['prefill_tokens']} tokens: {probes['ttft_ms']:.1f} ms. Loaded and warm in {report['load_s']:.2f} s. "
        f"Peak RSS, with the KV that was used: {peak / 1e9:.2f} GB; the weights are {weights / 1e9:.2f} GB.",
    ]
    return "\n".join(lines) + "\n"


def _intrusion(report: dict[str, Any]) -> str:
    head = (
        "streams",
        "prompt",
        "idle p50, ms",
        "idle p99, ms",
        "intruded p50, ms",
        "intruded p99, ms",
        "p99 ratio",
        "TTFT of the prompts, ms",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for run in report["runs"]:
        firsts = run["intruder_ttft_ms"]
        gaps = (f"{run[f'{kind}_p{part}_itl_ms']:.1f}" for kind in ("idle", "intruded") for part in (50, 99))
        cells = (
            run["streams"],
            run["prompt_tokens"],
            *gaps,
            f"**{run['p99_ratio']:.2f}**",
            f"{min(firsts):.0f}-{max(firsts):.0f}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, _Table] = {
    "sweep": _sweep, "kernels": _kernels, "bitwise": _bitwise, "engine": _engine, "intrusion": _intrusion,
}  # fmt: skip


def source(report: dict[str, Any]) -> str:
    """What a table's figures come from."""
    machine = report["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores; commit {report['commit'][:10]}."


def filled(text: str, reports: dict[str, dict[str, Any]]) -> str:
    """The page, with a table at each place that a report is for."""

    def fill(found: re.Match[str]) -> str:
        name = found[2]
        if name not in reports:
            return found[0]
        return f"{found[1]}\n{TABLES[name](reports[name])}\n{source(reports[name])}\n\n<!-- end: {name} -->\n"

    return _PLACE.sub(fill, text)


def main() -> None:
    """Fill the page."""
    page, results = _ROOT / "docs/performance.md", _ROOT / "docs/results"
    reports = {name: json.loads(path.read_text()) for name in TABLES if (path := results / f"{name}.json").exists()}
    page.write_text(filled(page.read_text(), reports))
    sys.stdout.write(f"{page}: {', '.join(reports) or 'no reports'}\n")


if __name__ == "__main__":
    main()
