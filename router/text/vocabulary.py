"""Each token's own bytes, read from a tokenizer.json's decoder. A text is its tokens' bytes, joined and read as UTF-8.

Decoders of generating models are of two kinds. Byte-level ones map each character of a token to one byte. Sentencepiece-like ones
replace U+2581 by a space, take tokens like <0xE2> as one byte, and drop a space at the very start of a text. Both are exact per token,
which `Tokenizer.decode` of the tokenizers library is not: it turns a whole run of byte tokens into U+FFFD when one of them is wrong.
Clean-up of spaces before punctuation is never done: it rewrites what the model wrote.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from shared.decoder import Rules

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = " "


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (source: GPT-2's encoder, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Bytes of token ids, worked out once each. An id that the tokenizer does not know has none."""

    tokenizer: Tokenizer
    rules: Rules
    special: frozenset[int]
    _known: dict[int, bytes] = field(default_factory=dict)
    _alphabet: Mapping[str, int] = field(default_factory=byte_alphabet)

    def bytes_of(self, token: int) -> bytes:
        """The token's bytes within a text, special tokens' as they are spelled."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._spell(self.tokenizer.id_to_token(token) or "")
        return known

    def first_bytes(self, token: int) -> bytes:
        """The token's bytes where it begins a text, before `rules.strip` is applied."""
        whole = self.bytes_of(token)
        return whole.replace(_SPACE.encode(), b"") if self.rules.bare_first else whole

    def _spell(self, text: str) -> bytes:
        if self.rules.byte_level:
            values = [self._alphabet.get(char) for char in text]
            return text.encode() if None in values else bytes(value for value in values if value is not None)
        if self.rules.byte_fallback and (byte := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        for old, new in self.rules.replace:
            text = text.replace(old, new)
        return text.encode()

    def text_bytes(self, tokens: Sequence[int], *, skip_special: bool) -> bytes:
        """The bytes of a whole text that begins with the first of `tokens`."""
        kept = [token for token in tokens if not (skip_special and token in self.special)]
        if not kept:
            return b""
        joined = self.first_bytes(kept[0]) + b"".join(map(self.bytes_of, kept[1:]))
        return strip_spaces(joined, self.rules.strip)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `tokens`; bytes that are not UTF-8 become U+FFFD."""
        return self.text_bytes(tokens, skip_special=skip_special).decode("utf-8", "replace")


def strip_spaces(data: bytes, limit: int) -> bytes:
    """`data` without its first spaces, at most `limit` of them."""
    spaces = len(data) - len(data.lstrip(b" "))
    return data[min(spaces, limit) :]


def specials_of(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the tokens that generated text leaves out."""
    return frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
