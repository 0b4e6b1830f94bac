"""One event is one line, whatever a peer has put into it."""

import logging

from shared.telemetry import setup_logging


def test_what_is_not_printable_is_spelled(capsys):
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    try:
        setup_logging("info")
        logging.getLogger("peer").info("worker %s came from %s", "w\r\n2026 ERROR forged\x1b[2J\x00\u2028", "Köln 你好")
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r"INFO peer: worker w\r\n2026 ERROR forged\x1b[2J\x00\u2028 came from Köln 你好")
