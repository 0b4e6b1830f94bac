"""Tiny random Llamas on disk, each with a real tokenizer, for tests that start a worker."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from shared.tokenizer import TokenizerBundle
from tests.fakes.checkpoint import tiny_llama

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
VOCAB_SIZE = 512
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "Once upon a time there was a small machine that answered every question it was asked, one word after another.",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on; nothing else happens in this story.",
    "def add(first: int, second: int) -> int:\n    return first + second\n",
    '{"name": "octavo", "numbers": [1, 2, 3], "nested": {"true": false}}',
    "Grüße aus Köln, où es-tu, ¿qué tal?, добрый день, 你好世界, こんにちは, สวัสดี, 🙂🚀",
)


def tiny_tokenizer(vocab_size: int = VOCAB_SIZE) -> TokenizerBundle:
    """Byte-level BPE over a few sentences, with a chat template. The same at each call."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    names = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[EOS], "pad_token": SPECIALS[0]}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    return TokenizerBundle.from_files(
        {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
            "chat_template.jinja": TEMPLATE.encode(),
            "generation_config.json": json.dumps({"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0}).encode(),
        }
    )


def write_tiny_llama(directory: Path, *, seed: int = 0, max_shard_size: str = "1GB", **changes: Any) -> Path:
    """A Hugging Face directory with a random float32 Llama; `changes` go into its LlamaConfig. The same for one seed."""
    model, _ = tiny_llama(seed, (EOS,), vocab_size=VOCAB_SIZE, **changes)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    tiny_tokenizer().write_to(directory)
    return directory
