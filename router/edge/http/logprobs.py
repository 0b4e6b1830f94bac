"""Log-probabilities in OpenAI's two shapes."""

import codecs
from collections.abc import Sequence
from dataclasses import replace

from router.edge.http.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from router.request import Logprobs, PromptRows, TokenText

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

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = start

    def take(self, text: bytes) -> int:
        """The offset of the next token."""
        start = self._count
        self._count += len(self._decoder.decode(text))
        return start


def _alternatives(row: Logprobs) -> dict[str, float]:
    """By text; the sampled token is among them, as in OpenAI's, which may make them one more than were asked for."""
    return {shown(token.text): _value(token) for token in reversed((row.sampled, *row.top))}


class _EchoOffsets:
    """Where each of a prompt's tokens starts in the prompt's own text, which need not spell all of them.

    A beginning-of-sequence token that the tokenizer added is not there, nor is a space that it put before the first word.
    """

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._at = 0

    def take(self, token: bytes) -> int:
        """The offset of the next token, in characters."""
        start = len(self._text[: self._at].decode(errors="ignore"))
        for spelled in (token, token.removeprefix(b" ")):
            if self._text.startswith(spelled, self._at):
                self._at += len(spelled)
                break
        return start


def echoed(prompt: PromptRows, text: str, alternatives: int) -> CompletionLogprobs:
    """The prompt's rows in completions' shape; `text` is the prompt's, and alternatives beyond so many are left out."""
    offsets = _EchoOffsets(text)
    first = offsets.take(prompt.first.encode())
    rows = [replace(row, top=row.top[:alternatives]) for row in prompt.rows]
    return {
        "tokens": [prompt.first, *(shown(row.sampled.text) for row in rows)],
        "token_logprobs": [None, *(_value(row.sampled) for row in rows)],
        "top_logprobs": [None, *(_alternatives(row) for row in rows)],
        "text_offset": [first, *(offsets.take(row.sampled.text) for row in rows)],
    }


def joined(one: CompletionLogprobs, other: CompletionLogprobs) -> CompletionLogprobs:
    """One after the other."""
    return {
        "tokens": one["tokens"] + other["tokens"],
        "token_logprobs": one["token_logprobs"] + other["token_logprobs"],
        "top_logprobs": one["top_logprobs"] + other["top_logprobs"],
        "text_offset": one["text_offset"] + other["text_offset"],
    }


def _prompt_token(token: TokenText, rank: int | None) -> PromptLogprob:
    return {"logprob": _value(token), "rank": rank, "decoded_token": shown(token.text)}


def _prompt_row(row: Logprobs, alternatives: int) -> dict[str, PromptLogprob]:
    ranks = {token.token: rank for rank, token in enumerate(row.top, 1)}
    tokens = (*row.top[:alternatives], row.sampled)
    return {str(token.token): _prompt_token(token, ranks.get(token.token)) for token in tokens}


def of_prompt(prompt: PromptRows, alternatives: int) -> PromptLogprobs:
    """The prompt's rows by token id: up to so many alternatives, and the prompt's own token always."""
    return [None, *(_prompt_row(row, alternatives) for row in prompt.rows)]


def completion(rows: Sequence[Logprobs], offsets: Offsets) -> CompletionLogprobs:
    """Completions' shape. `offsets` goes with the choice, over all of its pieces."""
    return {
        "tokens": [shown(row.sampled.text) for row in rows],
        "token_logprobs": [_value(row.sampled) for row in rows],
        "top_logprobs": [_alternatives(row) for row in rows],
        "text_offset": [offsets.take(row.sampled.text) for row in rows],
    }
