"""Tables for people to read."""

from collections.abc import Sequence


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their heads, in columns as wide as what they hold."""
    whole = [head, *rows]
    widths = [max(len(row[at]) for row in whole) for at in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in whole)
    return "\n".join(lines)
