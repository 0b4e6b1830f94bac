"""API keys in text that somebody may see. A key has a form of its own, so that it can be taken out wherever it was put by mistake."""

import logging
import re

KEY_MARK = "octk-"
KEY = re.compile(r"octk-[0-9A-Za-z]{12}-[0-9A-Za-z]{43}")
_ANY_PART = re.compile(r"octk-[0-9A-Za-z-]+")  # also what is left of one that was cut
_SHOWN = "octk-***"


def redact(text: str) -> str:
    """`text` without keys, or parts of keys."""
    return _ANY_PART.sub(_SHOWN, text) if KEY_MARK in text else text


class Redacting(logging.Formatter):
    """Takes keys out of whatever another formatter makes, tracebacks included."""

    def __init__(self, inner: logging.Formatter):
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return redact(self._inner.format(record))
