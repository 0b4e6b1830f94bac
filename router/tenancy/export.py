"""The ledger's lines and totals as CSV or JSON, for `octavo usage` and the admin's REST."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

from router.tenancy.records import Charge
from router.tenancy.store import UsageLine, UsageTotal

Format = Literal["csv", "json"]

LINE_FIELDS = tuple(field.name for field in fields(Charge))
TOTAL_FIELDS = UsageTotal.__dataclass_fields__.keys()


def lines(found: Sequence[UsageLine], form: Format) -> str:
    """Lines of the ledger; times are Unix seconds."""
    return _written((asdict(line.charge) for line in found), LINE_FIELDS, form)


def totals(found: Sequence[UsageTotal], form: Format) -> str:
    """Sums of the ledger."""
    return _written((asdict(total) for total in found), tuple(TOTAL_FIELDS), form)


def _written(rows: Iterable[dict[str, Any]], names: Sequence[str], form: Format) -> str:
    if form == "json":
        return json.dumps(list(rows), indent=1) + "\n"
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """What a spreadsheet would take for a formula is told to be text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
