"""A PEFT directory becomes what the kernels take, with PEFT's own ranks and scales, or is refused with the keys and numbers at fault."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.fakes import adapters as fakes
from worker.adapters.errors import AdapterInvalid, AdapterMemory, AdapterMismatch, AdapterNotFound, AdapterRankTooHigh
from worker.adapters.peft import read
from worker.adapters.version import Version

MOST = 1 << 20
A, B = "lora_A.weight", "lora_B.weight"


def load(directory: Path, **options: Any) -> Version:
    return read(directory, fakes.base(**options), MOST)


def test_pairs_are_where_their_keys_say(tmp_path):
    version = load(fakes.write(tmp_path, rank=4))
    held = fakes.tensors(4)
    for layer, modules in enumerate(version.weights.layers):
        assert set(modules) == {"q", "down"}
        path = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        assert torch.equal(modules["q"].a, held[f"{path}.{A}"])
        assert torch.equal(modules["q"].b, held[f"{path}.{B}"])
        assert modules["q"].scale == 2.0
    assert (version.rank, version.bytes) == (4, sum(one.nbytes for one in held.values()))


def test_rank_stabilised_scales_divide_by_the_root(tmp_path):
    version = load(fakes.write(tmp_path, use_rslora=True))
    assert version.weights.layers[0]["q"].scale == 8 / math.sqrt(4)


@pytest.mark.parametrize(
    "key", ["down_proj", "mlp.down_proj", r"layers\.\d+\.mlp\.down_proj", "model.layers.[01].mlp.down_proj"]
)
def test_patterns_change_the_rank_and_the_scale_of_what_they_match(tmp_path, key):
    held = fakes.tensors(4, modules=("q",)) | fakes.tensors(2, modules=("down",))
    version = load(fakes.write(tmp_path, held=held, rank_pattern={key: 2}, alpha_pattern={"down_proj": 3}))
    assert (version.weights.layers[1]["down"].rank, version.weights.layers[1]["down"].scale) == (2, 1.5)
    assert (version.weights.layers[1]["q"].rank, version.weights.layers[1]["q"].scale) == (4, 2.0)


def test_fused_projections_share_a_and_part_b(tmp_path):
    held = {}
    for layer in range(fakes.LAYERS):
        held |= fakes.pair(f"model.layers.{layer}.self_attn.qkv_proj", 8, 16, 4, layer)
        held |= fakes.pair(f"model.layers.{layer}.mlp.gate_up_proj", 8, 24, 4, layer)
    version = load(fakes.write(tmp_path, held=held, target_modules=["qkv_proj", "gate_up_proj"]), model_type="phi3")
    layer = version.weights.layers[1]
    b = held["base_model.model.model.layers.1.self_attn.qkv_proj.lora_B.weight"]
    assert all(torch.equal(layer[part].a, layer["q"].a) for part in ("k", "v"))
    assert torch.equal(torch.cat([layer[part].b for part in ("q", "k", "v")]), b)
    assert torch.equal(layer["up"].b, held["base_model.model.model.layers.1.mlp.gate_up_proj.lora_B.weight"][12:])


def test_embeddings_and_head_may_bring_copies_of_the_bases_own(tmp_path):
    held = fakes.pair("lm_head", 8, 50, 2, 0) | {
        "base_model.model.model.embed_tokens.lora_embedding_A": torch.randn(2, 50),
        "base_model.model.model.embed_tokens.lora_embedding_B": torch.randn(8, 2),
        "base_model.model.model.embed_tokens.base_layer.weight": torch.ones(50, 8),
        "base_model.model.lm_head.base_layer.weight": torch.ones(50, 8),
    }
    version = load(fakes.write(tmp_path, held=held, r=2, target_modules=["lm_head", "embed_tokens"]))
    weights = version.weights
    assert (weights.head.rank, tuple(weights.embed.a.shape), tuple(weights.embed.b.shape)) == (2, (2, 50), (8, 2))
    assert version.bytes == 2 * 4 * (2 * 50 + 8 * 2)


def test_some_layers_alone_may_be_trained(tmp_path):
    held = {key: value for key, value in fakes.tensors().items() if "layers.1" in key}
    version = load(fakes.write(tmp_path, held=held, layers_to_transform=[1]))
    assert not version.weights.layers[0]
    assert set(version.weights.layers[1]) == {"q", "down"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_kept(tmp_path, dtype):
    held = {key: value.to(dtype) for key, value in fakes.tensors().items()}
    assert load(fakes.write(tmp_path, held=held)).weights.layers[0]["q"].a.dtype == dtype


def test_the_digest_is_of_what_was_loaded(tmp_path):
    one = load(fakes.write(tmp_path / "one"))
    same = fakes.write(tmp_path / "same", held=dict(reversed(fakes.tensors().items())))
    raw = json.loads((same / "adapter_config.json").read_text())
    (same / "adapter_config.json").write_text(json.dumps(dict(reversed(raw.items())), indent=4))
    save_file(fakes.tensors(), same / "adapter_model.safetensors", metadata={"format": "pt"})
    assert load(same).digest == one.digest
    others = [fakes.write(tmp_path / "seed", seed=1), fakes.write(tmp_path / "alpha", lora_alpha=9)]
    assert len({one.digest, *(load(other).digest for other in others)}) == 3
    assert len(one.digest) == 32


def test_what_was_read_does_not_change_with_the_file(tmp_path):
    version = load(fakes.write(tmp_path))
    before = version.weights.layers[0]["q"].a.clone()
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert torch.equal(version.weights.layers[0]["q"].a, before)


@pytest.mark.parametrize("kind", fakes.BROKEN)
def test_c5_what_is_broken_is_refused_with_its_reason(tmp_path, kind):
    make, reason = fakes.BROKEN[kind]
    with pytest.raises((AdapterInvalid, AdapterNotFound), match=reason):
        load(make(tmp_path / "adapter"))


def test_c6_a_rank_that_is_too_high_has_a_kind_of_its_own(tmp_path):
    with pytest.raises(AdapterRankTooHigh, match="rank 17 is over the 16"):
        load(fakes.write(tmp_path, rank=17))
    assert load(fakes.write(tmp_path / "most", rank=16)).rank == 16


def test_c5_one_stray_key_among_many_refuses_all(tmp_path):
    held = fakes.tensors() | fakes.pair("model.layers.0.self_attn.z_proj", 8, 8, 4, 0)
    with pytest.raises(AdapterMismatch, match=r"z_proj\.lora_A\.weight.*z_proj\.lora_B\.weight"):
        load(fakes.write(tmp_path, held=held))


def test_a_file_over_the_budget_is_not_read(tmp_path):
    with pytest.raises(AdapterMemory, match="holds 1152 bytes; 100 are for adapters"):
        read(fakes.write(tmp_path), fakes.base(), 100)
