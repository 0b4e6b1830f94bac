"""Log-probabilities in OpenAI's two shapes."""

import codecs
from collections.abc import Sequence

from router.edge.http.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)
from router.request import Logprobs, TokenText

LOWEST = -9999.0  # JSON has no -Infinity; OpenAI's own stand-in


def _value(token: TokenText) -> float:
    return max(token.logprob, LOWEST)


def shown(text: bytes) -> str:
    r"""A token's bytes as text. Partial characters are shown as by OpenAI (bytes:\xe2\x80): no two look alike."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _top(token: TokenText) -> TopLogprob:
    return {
        "token": shown(token.text),
        "logprob": _value(token),
        "bytes": list(token.text),
    }


def _content(row: Logprobs) -> TokenLogprob:
    return {**_top(row.sampled), "top_logprobs": [_top(token) for token in row.top]}


def chat(rows: Sequence[Logprobs]) -> ChatLogprobs:
    """Chat's shape."""
    return {"content": [_content(row) for row in rows], "refusal": None}


class Offsets:
    """Where each token's text starts in its choice, in characters.

    A token that only completes a character starts where that one does.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0

    def take(self, text: bytes) -> int:
        """The offset of the next token."""
        start = self._count
        self._count += len(self._decoder.decode(text))
        return start


def _alternatives(row: Logprobs) -> dict[str, float]:
    """By text; the sampled token is among them, as in OpenAI's, which may make them one more than were asked for."""
    return {shown(token.text): _value(token) for token in reversed((row.sampled, *row.top))}


def completion(rows: Sequence[Logprobs], offsets: Offsets) -> CompletionLogprobs:
    """Completions' shape. `offsets` goes with the choice, over all of its pieces."""
    return {
        "tokens": [shown(row.sampled.text) for row in rows],
        "token_logprobs": [_value(row.sampled) for row in rows],
        "top_logprobs": [_alternatives(row) for row in rows],
        "text_offset": [offsets.take(row.sampled.text) for row in rows],
    }
