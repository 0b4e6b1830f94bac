"""How a tokenizer.json's decoder reads one token's string, as far as it is served. The router works by it; the worker refuses what it does
not know before it serves, because no router could use such a worker. Imports no tokenizers library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = " "


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How a decoder reads one token's string.

    `strip` leading spaces are dropped from a text as a whole; with `bare_first`, every space of a text's first token is.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replace: tuple[tuple[str, str], ...] = ()
    strip: int = 0
    bare_first: bool = False


class UnsupportedDecoder(ValueError):
    """A decoder that joins tokens in a way that is not exact per token."""


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    pattern = step["pattern"]
    if "String" not in pattern:
        raise UnsupportedDecoder(f"a Replace decoder by {pattern} is not supported")
    return pattern["String"], step["content"]


def read_rules(decoder: Mapping[str, Any] | None) -> Rules:
    """The rules of a tokenizer.json's `decoder`; raises UnsupportedDecoder naming the step that is not served."""
    steps = _flatten(decoder) if decoder else []
    replace: list[tuple[str, str]] = []
    kinds, strip, bare_first = {step["type"] for step in steps}, 0, False
    if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
        raise UnsupportedDecoder(f"decoder of kind {sorted(kinds) or 'none'} is not supported")
    for step in steps:
        match step["type"]:
            case "ByteLevel" | "ByteFallback" | "Fuse":
                pass
            case "Replace":
                replace.append(_replacement(step))
            case "Metaspace":
                replace.append((step["replacement"], _SPACE))
                bare_first = step.get("prepend_scheme", "always") != "never"
            case "Strip" if step["content"] == _SPACE and step["stop"] == 0 and "Fuse" in kinds:
                strip = step["start"]
            case other:
                raise UnsupportedDecoder(f"decoder step {other} is not supported: {dict(step)}")
    return Rules(
        byte_level="ByteLevel" in kinds,
        byte_fallback="ByteFallback" in kinds,
        replace=tuple(replace),
        strip=strip,
        bare_first=bare_first,
    )
