"""Every family's GGUF file becomes the model that it was written from: transformers computes the same logits from what is read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.fakes.gguf_families import CASES, SIZES, original, stored, written
from tests.fakes.gguf_files import write_gguf
from worker.sources.errors import SourceError
from worker.sources.gguf.architecture import ARCHITECTURES
from worker.sources.open import open_checkpoint


def test_there_is_a_case_for_every_architecture() -> None:
    assert {case.architecture for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_the_model_that_was_written(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = original(case)
    checkpoint = written(tmp_path / "m.gguf", case, model)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    expected = stored(model)
    assert tensors.keys() == expected.keys()
    for tensor, values in expected.items():
        torch.testing.assert_close(tensors[tensor], values, rtol=0, atol=2e-7, msg=tensor)
    config = AutoConfig.for_model(**{key: value for key, value in checkpoint.config.items() if key != "dtype"})
    read = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    missing, unexpected = read.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    read.tie_weights()
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(read(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)
    assert type(read).__name__ == checkpoint.config["architectures"][0]


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_says_what_transformers_would_write(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = original(case)
    read = written(tmp_path / "m.gguf", case, model).config
    whole = model.config.to_dict()
    assert read["model_type"] == ("llama" if name == "mistral with a head of its own width" else case.model_type)
    skipped = {"model_type", "architectures", "dtype", "rope_parameters", "rope_scaling", "rope_theta"}
    for key in sorted(read.keys() & whole.keys() - skipped):
        assert read[key] == whole[key], key
    ours, theirs = read["rope_parameters"], whole["rope_parameters"]
    for key in theirs:
        if key != "partial_rotary_factor":
            assert (
                ours[key] == pytest.approx(theirs[key]) if isinstance(theirs[key], list) else ours[key] == theirs[key]
            )


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("qwen3", {"qwen3.attention.value_length": 16}, r"qwen3\.attention\.value_length"),
        ("qwen3", {"qwen3.expert_count": 4}, "mixtures of experts"),
        ("gemma3", {"gemma3.attention.sliding_window": None}, r"gemma3\.attention\.sliding_window is missing"),
        ("olmo2", {"olmo2.attention.sliding_window": 4096}, "OLMo 3"),
        ("phi4 mini", {"phi3.rope.scaling.original_context_length": None}, "original_context_length is missing"),
        ("llama", {"llama.rope.freq_base": "big"}, r"llama\.rope\.freq_base is 'big'; expected a number"),
    ],
)
def test_metadata_that_are_not_served_or_not_whole_are_named(
    tmp_path: Path, name: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(SourceError, match=named):
        written(tmp_path / "m.gguf", CASES[name], original(CASES[name]), **changes)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2", "blk.0.attn_q_norm.weight"),
        ("qwen3", "blk.0.attn_q.bias"),
        ("gemma3", "rope_freqs.weight"),
        ("phi3", "blk.0.ffn_gate.weight"),
        ("olmo2", "blk.0.attn_norm.weight"),
        ("gemma2", "blk.0.ffn_gate_exps.weight"),
    ],
)
def test_a_tensor_that_its_family_does_not_have_is_named(tmp_path: Path, name: str, tensor: str) -> None:
    model = original(CASES[name])
    case = CASES[name]
    config = model.config.to_dict()
    extra = {tensor: torch.ones(8), **case.extra_tensors}
    path = tmp_path / "m.gguf"
    write_gguf(path, config, stored(model), architecture=case.architecture, extra=case.extra, extra_tensors=extra)
    with pytest.raises(SourceError, match=rf"tensor {tensor}".replace(".", r"\.")):
        open_checkpoint(str(path), cache=tmp_path)


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_attention_by_hidden_size_over_heads(tmp_path: Path, name: str, layers: int) -> None:
    model = original(CASES[name])
    config = model.config.to_dict() | {"num_hidden_layers": layers}
    path = tmp_path / "m.gguf"
    write_gguf(path, config, stored(model), architecture=CASES[name].architecture, extra=CASES[name].extra)
    assert open_checkpoint(str(path), cache=tmp_path).checkpoint.config["query_pre_attn_scalar"] == 64 // 4
