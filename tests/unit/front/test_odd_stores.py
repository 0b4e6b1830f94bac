"""`octavo tenant` and its like on stores that are broken or odd, and with arguments that are no text."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.fakes.commands import Octavo


@pytest.mark.parametrize(
    "command",
    [
        ("tenant", "delete", "\udcff"),
        ("key", "create", "\udcff", "main"),
        ("key", "revoke", "\udcff", "main"),
        ("key", "revoke", "acme", "\udcff"),
        ("prefix", "delete", "\udcff"),
        ("usage", "--tenant", "\udcff"),
        ("usage", "--lines", "--model", "\udcff"),
        ("audit", "--actor", "\udcff"),
    ],
)
def test_bytes_that_are_no_text_are_told_in_a_line(command: tuple[str, ...], applied: Path, octavo: Octavo) -> None:
    del applied
    status, out, err = octavo(*command)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("octavo: ")


def test_a_key_that_expires_when_no_calendar_knows_is_refused(applied: Path, octavo: Octavo) -> None:
    del applied
    status, out, err = octavo("key", "create", "acme", "main", "--expires", "999999999w")
    assert (status, out) == (1, "")
    assert "before the year 10000" in err


def test_a_key_that_was_made_to_expire_then_is_listed_all_the_same(applied: Path, octavo: Octavo) -> None:
    octavo("key", "create", "acme", "main", "--expires", "30d")
    for expires, told in ((6e14, "6e+14"), (1e300, "1e+300")):
        with sqlite3.connect(applied) as db:
            db.execute("UPDATE keys SET expires = ?", (expires,))
        db.close()
        status, out, _ = octavo("key", "list")
        assert (status, out.splitlines()[1].split()[-1]) == (0, told)


def test_what_a_store_has_of_earlier_versions_is_read(applied: Path, octavo: Octavo) -> None:
    with sqlite3.connect(applied) as db:
        text = db.execute("SELECT body FROM tenants WHERE name = 'acme'").fetchone()[0]
        old = json.dumps({**json.loads(text), "weight": True, "top_class": 1.0})
        db.execute("UPDATE tenants SET body = ? WHERE name = 'acme'", (old,))
    db.close()
    (acme, _) = json.loads(octavo("tenant", "list", "--json")[1])
    assert (acme.get("weight", 1), acme["top_class"]) == (1, 1)


def test_a_broken_store_is_told_in_a_line(applied: Path, octavo: Octavo) -> None:
    whole = applied.read_bytes()
    applied.write_bytes(whole[:4096] + b"U" * (len(whole) - 4096))
    for command in (("tenant", "list"), ("key", "create", "acme", "main"), ("usage",), ("audit",)):
        status, out, err = octavo(*command)
        assert (status, out, err.count("\n")) == (1, "", 1), command
