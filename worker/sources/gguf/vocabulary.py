"""The vocabulary of a GGUF file, as its metadata hold it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from worker.sources.errors import SourceError
from worker.sources.gguf.metadata import Metadata


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`. Source: llama.cpp's llama_token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Tokens by id with their kinds, and the special ids (None where the file names none)."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None

    def ids(self) -> dict[str, int]:
        """Token -> id; of two equal tokens the first counts."""
        return {token: number for number, token in reversed(list(enumerate(self.tokens)))}

    def of_kind(self, kind: TokenKind) -> list[str]:
        return [token for token, its_kind in zip(self.tokens, self.kinds, strict=True) if its_kind == kind]

    def text(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.tokens[token_id]


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Raises SourceError where kinds and tokens differ in number, or a special id lies outside."""
    tokens = metadata.items("tokenizer.ggml.tokens", of=str)
    kinds = metadata.items("tokenizer.ggml.token_type", [TokenKind.NORMAL] * len(tokens), of=int)
    if len(kinds) != len(tokens):
        raise SourceError(
            f"{metadata.path}: tokenizer.ggml.token_type has {len(kinds)} entries; expected {len(tokens)}"
        )
    special = {name: _special(metadata, name, len(tokens)) for name in ("bos", "eos", "unknown", "padding")}
    return Vocabulary(tokens=tokens, kinds=kinds, **special)


def _special(metadata: Metadata, name: str, size: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.optional_integer(key)
    if value is not None and not 0 <= value < size:
        raise SourceError(f"{metadata.path}: {key} is {value}; expected less than {size}")
    return value
