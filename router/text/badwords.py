"""Bad words given as text: the tokens that would spell them inside an output."""

from collections.abc import Sequence

from router.request import TextPrompt
from router.text.tokenizer import ModelText

# Text before a word keeps tokenizers from treating it as a text's start, where some put a space before it; no usual one merges over this.
_BEFORE = "\n"


def spellings(text: ModelText, strings: Sequence[str], param: str) -> tuple[tuple[int, ...], ...]:
    """Each string's tokens with and without a space before it, each sequence once. Raises InvalidRequest naming `param`."""
    before = _encode(text, _BEFORE, param)
    found = (_tokens(text, lead + string, before, param) for string in strings for lead in ("", " "))
    return tuple(dict.fromkeys(word for word in found if word))


def _tokens(text: ModelText, string: str, before: tuple[int, ...], param: str) -> tuple[int, ...]:
    """As they stand behind other text; where the tokenizer does merge over it, what it makes of the string alone."""
    tokens = _encode(text, _BEFORE + string, param)
    return tokens[len(before) :] if tokens[: len(before)] == before else _encode(text, string, param)


def _encode(text: ModelText, string: str, param: str) -> tuple[int, ...]:
    return tuple(text.encode(TextPrompt(text=string), add_special_tokens=False, param=param))
