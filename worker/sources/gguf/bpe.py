"""Byte-level BPE (`tokenizer.ggml.model` = gpt2) with the pre-tokenizers that `tokenizer.ggml.pre` names.

Source of the patterns: the tokenizer.json of each family as its makers publish it, and llama.cpp's `llm_tokenizer_bpe`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from worker.sources.errors import SourceError
from worker.sources.gguf.metadata import Metadata
from worker.sources.gguf.vocabulary import Vocabulary

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")

_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_THREE_DIGITS, _ONE_DIGIT = r"\p{N}{1,3}", r"\p{N}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# Letters of a word in which capitals come first.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_words(digits: str) -> str:
    """OpenAI's cl100k: words with the sign or space before them, signs with the line ends after them."""
    return rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _by_capitals(digits: str, after: str = "") -> str:
    """OpenAI's o200k: words end before a capital; `after` may follow them."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{after}|{first}{_UPPER}+{_LOWER}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How one family cuts text before merging. `whole_words` take a piece that is a token as it is, without merging;
    `begins` is whether a sequence starts with BOS where the file does not say."""

    split: Callable[[bool], PreTokenizer]
    composed: bool = False
    whole_words: bool = False
    begins: bool = False


def _gpt2(add_space: bool) -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=add_space, use_regex=True)


def _single_digits(add_space: bool) -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2(add_space)])


def _patterns(*patterns: str) -> Callable[[bool], PreTokenizer]:
    def split(add_space: bool) -> PreTokenizer:
        cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=add_space, use_regex=False)])

    return split


_GPT2 = Family(split=_gpt2)
_SINGLE_DIGITS = Family(split=_single_digits)
_CL100K = Family(split=_patterns(_by_words(_THREE_DIGITS)))
_LLAMA3 = replace(_CL100K, whole_words=True, begins=True)
_QWEN2 = Family(split=_patterns(_by_words(_ONE_DIGIT)), composed=True)
_TEKKEN = Family(split=_patterns(_by_capitals(_ONE_DIGIT)), whole_words=True, begins=True)
_O200K = Family(split=_patterns(_by_capitals(_THREE_DIGITS, f"{_SHORT_FORMS}?")))

FAMILIES = {
    "dbrx": _CL100K,
    "deepseek-r1-qwen": _QWEN2,
    "default": Family(split=_patterns(*_DEFAULT_SPLITS)),
    "falcon3": _LLAMA3,
    "gpt-2": _GPT2,
    "gpt-4o": _O200K,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "llama4": replace(_O200K, whole_words=True, begins=True),
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "pixtral": _LLAMA3,
    "qwen2": _QWEN2,
    "smaug-bpe": _CL100K,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "tekken": _TEKKEN,
}


def family(metadata: Metadata) -> Family:
    """The family that the file names. Raises SourceError for one that is not served: wrong cuts would be silently wrong text."""
    name = metadata.text("tokenizer.ggml.pre", "default")
    if name not in FAMILIES:
        raise SourceError(
            f"{metadata.path}: tokenizer.ggml.pre {name!r} is not served; served: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[name]


def build_bpe(metadata: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    """Model, cuts and decoder; special tokens are added by the caller."""
    kind = family(metadata)
    merges = [_pair(metadata, merge) for merge in metadata.items("tokenizer.ggml.merges", of=str)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids(), merges=merges, ignore_merges=kind.whole_words))
    if kind.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = kind.split(metadata.flag("tokenizer.ggml.add_space_prefix", default=False))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(metadata: Metadata, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise SourceError(
            f"{metadata.path}: tokenizer.ggml.merges has {merge!r}; expected two tokens and a space between"
        )
    return left, right
