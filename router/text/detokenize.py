"""Exact incremental detokenization: the deltas of a token stream, joined, are the text of the whole stream.

The text is that of the output in its place after the prompt: a sentencepiece-like decoder drops a leading space only where no prompt
text stands before it. A prompt may end inside a character; its bytes then complete the output's first character, or are forgotten,
and nothing else of the prompt can appear. Work per token is bounded by the token's own bytes.
"""

import codecs
from collections.abc import Sequence

from router.text.vocabulary import Vocabulary, strip_spaces

MAX_PENDING = 3  # bytes of an unfinished UTF-8 character


def unfinished_tail(data: bytes) -> bytes:
    """The last 1 to 3 bytes of `data` that begin a UTF-8 character without ending it; empty where there are none."""
    for length in range(1, min(MAX_PENDING, len(data)) + 1):
        tail = data[-length:]
        if tail[0] >= 0xC0:
            return tail if _unfinished(tail) else b""
    return b""


def _unfinished(data: bytes) -> bool:
    try:
        return codecs.utf_8_decode(data, "strict", False)[1] == 0
    except UnicodeDecodeError:
        return False


def _continues(tail: bytes, byte: bytes) -> bool:
    """Whether `byte` may stand after the unfinished character `tail`."""
    try:
        codecs.utf_8_decode(tail + byte, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def _prompt_tail(vocabulary: Vocabulary, prompt: Sequence[int]) -> bytes:
    """Bytes that the end of `prompt` leaves unfinished. A special token ends a character."""
    tail = b""
    for token in reversed(prompt[-(MAX_PENDING + 1) :]):
        if token in vocabulary.special or len(tail) > MAX_PENDING:
            break
        tail = vocabulary.bytes_of(token) + tail
    return unfinished_tail(tail)


class Detokenizer:
    """Turns one choice's tokens into text, token by token. Special tokens give no text."""

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int] = ()):
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = _prompt_tail(vocabulary, prompt)
        begins = all(token in vocabulary.special for token in prompt)
        self._first = begins
        self._strip = vocabulary.rules.strip if begins else 0

    def push(self, token: int) -> str:
        """The text that `token` completes: perhaps none, never half a character."""
        if token in self._vocabulary.special:
            return ""
        data = self._vocabulary.first_bytes(token) if self._first else self._vocabulary.bytes_of(token)
        self._first = False
        if self._strip:
            data = self._strip_start(data)
        if self._tail and data:
            data = self._join_prompt(data)
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left at the end of the stream: U+FFFD if it ends inside a character, else nothing."""
        return self._decoder.decode(b"", True)

    def _strip_start(self, data: bytes) -> bytes:
        stripped = strip_spaces(data, self._strip)
        self._strip = 0 if stripped else self._strip - len(data)
        return stripped

    def _join_prompt(self, data: bytes) -> bytes:
        tail, self._tail = self._tail, b""
        return tail + data if _continues(tail, data[:1]) else data
