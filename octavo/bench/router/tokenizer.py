"""A small tokenizer whose every word holds one mark, so that a sink counts tokens by counting bytes."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from shared.tokenizer import TokenizerBundle

END = "<|endoftext|>"
MARK = b"~"
_WORDS = 64


def _vocabulary() -> list[str]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [END, *letters, *(f"Ġw{number:02d}{MARK.decode()}" for number in range(_WORDS))]


VOCAB_SIZE = len(_vocabulary())
FIRST_WORD = VOCAB_SIZE - _WORDS
END_TOKEN = 0


def word(number: int) -> int:
    """A token of five characters, of which one is the mark."""
    return FIRST_WORD + number % _WORDS


def bundle() -> TokenizerBundle:
    """The files that a worker would publish. The mark's own byte is a token of its own, which no worker here sends."""
    vocabulary = {token: number for number, token in enumerate(_vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    config = json.dumps({"eos_token": END}).encode()
    return TokenizerBundle.from_files({"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": config})
