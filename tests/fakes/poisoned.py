"""A tiny model that some inputs break: a token whose embedding is NaN, a template that raises or does not end, a tokenizer that fails."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from router.text.vocabulary import byte_alphabet
from shared.tokenizer import TokenizerBundle
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.tiny_models import EOS, SPECIALS

NO_TOKEN = "Z"  # no token stands for it, and none for what is unknown: the tokenizer raises
RAISES, LOOPS = "raise", "loop"  # messages
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.content == 'raise' %}{{ raise_exception('this is not a conversation') }}{% endif %}"
    "{% if m.content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
)
BEFORE = 6  # tokens that a stream gives before its poison, at least


@dataclass(frozen=True, kw_only=True)
class Poisoned:
    """`token` makes logits that are not finite wherever it is read. Greedy, `prompt` gives `before` and then the token itself."""

    path: Path
    token: int
    prompt: tuple[int, ...]
    before: tuple[int, ...]


def _tokenizer() -> Tokenizer:
    """One token a byte, all but one of them."""
    letters = [letter for letter in sorted(byte_alphabet()) if letter != NO_TOKEN]
    vocab = {token: i for i, token in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(Regex("."), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return tokenizer


def _bundle() -> TokenizerBundle:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[1], "eos_token": SPECIALS[EOS]}
    return TokenizerBundle.from_files(
        {
            "tokenizer.json": _tokenizer().to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
            "chat_template.jinja": TEMPLATE.encode(),
            "generation_config.json": json.dumps({"eos_token_id": EOS}).encode(),
        }
    )


def _greedy(model: torch.nn.Module, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


def write_poisoned_llama(directory: Path) -> Poisoned:
    """The model, and a prompt that runs into its poison."""
    vocab_size = _tokenizer().get_vocab_size()
    model, _ = tiny_llama(7, (EOS,), vocab_size=vocab_size)
    for first in range(20, 200):
        prompt = tuple(range(first, first + 5))
        outputs = _greedy(model, prompt, 24)
        fresh = [i for i, token in enumerate(outputs) if token not in (*prompt, *outputs[:i])]
        late = next((i for i in fresh if i >= BEFORE), None)
        if late is not None and EOS not in outputs[: late + 1]:
            break
    else:
        raise AssertionError("no prompt gives a fresh token late enough")
    token = outputs[late]
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = torch.nan
    model.save_pretrained(directory)
    _bundle().write_to(directory)
    return Poisoned(path=directory, token=token, prompt=prompt, before=outputs[:late])
