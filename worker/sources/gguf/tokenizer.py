"""A GGUF file's vocabulary, chat template and special tokens as the files of a Hugging Face tokenizer."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from shared.tokenizer import TokenizerBundle
from worker.sources.errors import SourceError
from worker.sources.gguf.bpe import build_bpe, family
from worker.sources.gguf.metadata import Metadata
from worker.sources.gguf.spm import build_spm
from worker.sources.gguf.vocabulary import TokenKind, Vocabulary, read_vocabulary

_BUILDERS: Mapping[str, Callable[[Metadata, Vocabulary], Tokenizer]] = {"gpt2": build_bpe, "llama": build_spm}
# Of Phi-3's own tokens, those that do not take the spaces after them. Source: its tokenizer.json, and llama.cpp's llama-vocab.cpp.
_PHI3_KEEPS_SPACES = frozenset({"<unk>", "<s>", "<|endoftext|>"})
# Control tokens that end a turn, for files that name only the end of a text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")


def read_tokenizer(metadata: Metadata) -> TokenizerBundle:
    """Raises SourceError where the vocabulary is of a kind that is not served, or does not hold together."""
    vocabulary = read_vocabulary(metadata)
    files = {
        "tokenizer.json": _tokenizer(metadata, vocabulary).to_str().encode(),
        "tokenizer_config.json": _json(_tokenizer_config(metadata, vocabulary)),
        "generation_config.json": _json(generation_config(metadata)),
    }
    if metadata.has("tokenizer.chat_template"):
        files["chat_template.jinja"] = metadata.text("tokenizer.chat_template").encode()
    return TokenizerBundle.from_files(files)


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Special ids; `eos_token_id` lists the end of text and whatever ends a turn."""
    vocabulary = read_vocabulary(metadata)
    named = [metadata.optional_integer(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    controls = set(vocabulary.of_kind(TokenKind.CONTROL))
    turns = [number for text, number in vocabulary.ids().items() if text in _TURN_ENDS and text in controls]
    ends = list(dict.fromkeys([token for token in named if token is not None] + sorted(turns)))
    config = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": vocabulary.padding,
    }
    return {key: value for key, value in config.items() if value is not None}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def _tokenizer(metadata: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise SourceError(
            f"{metadata.path}: tokenizer.ggml.model {kind!r} is not served; served: {', '.join(_BUILDERS)}"
        )
    tokenizer = _BUILDERS[kind](metadata, vocabulary)
    swallows = _swallows_spaces(metadata)

    def added(token: str, *, special: bool) -> AddedToken:
        rstrip = swallows and token not in _PHI3_KEEPS_SPACES
        return AddedToken(token, special=special, normalized=False, rstrip=rstrip)

    special = vocabulary.of_kind(TokenKind.CONTROL) + vocabulary.of_kind(TokenKind.UNKNOWN)
    tokenizer.add_special_tokens([added(token, special=True) for token in special])
    tokenizer.add_tokens([added(token, special=False) for token in vocabulary.of_kind(TokenKind.USER_DEFINED)])
    begin, end = _ends(metadata)
    _add_ends(tokenizer, vocabulary, begin=begin, end=end)
    return tokenizer


def _swallows_spaces(metadata: Metadata) -> bool:
    """Phi-3's own tokens take the spaces and line ends after them; files do not say so. Phi-4 has another kind of vocabulary."""
    phi3 = metadata.text("general.architecture", "") == "phi3"
    return phi3 and metadata.text("tokenizer.ggml.model") == "llama"


def _ends(metadata: Metadata) -> tuple[bool, bool]:
    """Whether a sequence starts with BOS and closes with EOS: as the file says, else as llama.cpp assumes for its kind."""
    sentencepiece = metadata.text("tokenizer.ggml.model") == "llama"
    begins = sentencepiece or family(metadata).begins
    return (
        metadata.flag("tokenizer.ggml.add_bos_token", default=begins),
        metadata.flag("tokenizer.ggml.add_eos_token", default=False),
    )


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, *, begin: bool, end: bool) -> None:
    first = [(vocabulary.tokens[vocabulary.bos], vocabulary.bos)] if begin and vocabulary.bos is not None else []
    last = [(vocabulary.tokens[vocabulary.eos], vocabulary.eos)] if end and vocabulary.eos is not None else []
    if not first and not last:
        return
    single = [*(text for text, _ in first), "$A", *(text for text, _ in last)]
    pair = [*single, *(f"{text}:1" for text, _ in first), "$B:1", *(f"{text}:1" for text, _ in last)]
    specials = list(dict(first + last).items())
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)


def _tokenizer_config(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    begin, end = _ends(metadata)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
        "unk_token": vocabulary.text(vocabulary.unknown),
        "pad_token": vocabulary.text(vocabulary.padding),
        "add_bos_token": begin,
        "add_eos_token": end,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.optional_integer(
            f"{metadata.text('general.architecture', 'llama')}.context_length"
        ),
    }
    return {key: value for key, value in config.items() if value is not None}
