"""The ledger's lines and totals, and the audit log's lines, as CSV or JSON, for `octavo usage`, `octavo audit` and the admin's REST."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

from router.tenancy.records import AuditRecord, Charge
from router.tenancy.store import AuditLine, UsageLine, UsageTotal

Format = Literal["csv", "json"]

LINE_FIELDS = tuple(field.name for field in fields(Charge))
AUDIT_FIELDS = ("time", "actor", "origin", "action", "subject", "before", "after")
TOTAL_FIELDS = UsageTotal.__dataclass_fields__.keys()


def lines(found: Sequence[UsageLine], form: Format) -> str:
    """Lines of the ledger; times are Unix seconds."""
    return _written((asdict(line.charge) for line in found), LINE_FIELDS, form)


def totals(found: Sequence[UsageTotal], form: Format) -> str:
    """Sums of the ledger."""
    return _written((asdict(total) for total in found), tuple(TOTAL_FIELDS), form)


def audit(found: Sequence[AuditLine], form: Format) -> str:
    """Lines of the audit log; times are Unix seconds."""
    return _written((audit_fields(line.record) for line in found), AUDIT_FIELDS, form)


def audit_fields(record: AuditRecord) -> dict[str, Any]:
    """A line of the audit log: `before` and `after` are what was and what is kept."""
    told = asdict(record) | {"after": record.detail}
    return {name: told[name] for name in AUDIT_FIELDS}


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
