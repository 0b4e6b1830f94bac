"""Byte-level BPE (`tokenizer.ggml.model` = gpt2) with the pre-tokenizers that `tokenizer.ggml.pre` names.

Source of the patterns: the tokenizer.json of each family as its makers publish it, and llama.cpp's `llm_tokenizer_bpe`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from worker.sources.errors import SourceError
from worker.sources.gguf.metadata import Metadata
from worker.sources.gguf.vocabulary import Vocabulary

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The two differ in how many digits make a token.
_LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")


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
_LLAMA3 = Family(split=_patterns(_LLAMA3_SPLIT), whole_words=True, begins=True)
_QWEN2 = Family(split=_patterns(_QWEN2_SPLIT), composed=True)

FAMILIES = {
    "default": Family(split=_patterns(*_DEFAULT_SPLITS)),
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
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
    merges = [_pair(metadata, merge) for merge in metadata.items("tokenizer.ggml.merges")]
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
