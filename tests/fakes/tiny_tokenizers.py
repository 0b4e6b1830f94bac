"""Small real tokenizers of each kind of decoder that models use, made on the spot."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from shared.tokenizer import TokenizerBundle

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'banned' %}{{ raise_exception('no ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = ("Hello", "Ġworld", "Ġthe", "Ġstop", "END", "Ċ", "ĠÃ©", "ðŁĺ", "à¸", "ä½")
_PIECES = ("▁Hello", "▁world", "▁the", "▁", "▁▁", "END", "st", "op", "é", "你", "ก", "▁st", "op▁")


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level() -> Tokenizer:
    """Three special tokens, 256 bytes, a few longer tokens that cut characters, one added token that is not special."""
    vocab = {token: i for i, token in enumerate([*SPECIALS, *_alphabet(), *_WORDS])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken("<think >", special=False)])
    return tokenizer


def _sentencepiece_vocabulary() -> dict[str, int]:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [chr(code) for code in range(0x21, 0x7F)]
    return {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *byte_tokens, *letters, *_PIECES])}


def sentencepiece() -> Tokenizer:
    """As Llama 2's: U+2581 for spaces, bytes as <0xXX>, one space dropped at a text's start, <s> before a text."""
    tokenizer = Tokenizer(
        models.BPE(vocab=_sentencepiece_vocabulary(), merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return tokenizer


def gemma_like() -> Tokenizer:
    """As `sentencepiece`, but with no space dropped."""
    tokenizer = sentencepiece()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def metaspace() -> Tokenizer:
    """As T5's and older Llamas': a Metaspace decoder."""
    tokenizer = sentencepiece()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def bundle(tokenizer: Tokenizer | None = None, template: str | None = TEMPLATE) -> TokenizerBundle:
    """The files that a worker would publish."""
    config = {
        "bos_token": "<|endoftext|>",
        "eos_token": {"content": "<|im_end|>"},
        "clean_up_tokenization_spaces": True,
    }
    if template is not None:
        config["chat_template"] = template
    files = {
        "tokenizer.json": (tokenizer or byte_level()).to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    return TokenizerBundle.from_files(files)
