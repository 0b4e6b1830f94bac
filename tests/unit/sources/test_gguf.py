"""GGUF files: the tensors and the configuration that went in come out, and what is wrong with a file is named."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.gguf_files import write_gguf
from worker.models.checkpoint import Checkpoint
from worker.sources.errors import SourceError
from worker.sources.gguf.file import open_file
from worker.sources.gguf.metadata import read_metadata
from worker.sources.gguf.rotary import llama3_factors
from worker.sources.gguf.source import GgufCheckpoint
from worker.sources.open import open_checkpoint

# Widths are multiples of a packing's block (32).
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _tiny(**changes: object) -> MemoryCheckpoint:
    return tiny_llama(3, vocab_size=100, **{**SHAPE, **changes})[1]


def _tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    if checkpoint.config["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    return tensors


def _written(path: Path, source: MemoryCheckpoint, cache: Path, **options: object) -> Checkpoint:
    write_gguf(path, source.config, _tensors(source), **options)  # type: ignore[arg-type]
    return open_checkpoint(str(path), cache=cache).checkpoint


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_float32_file_gives_back_the_tensors_exactly(tmp_path: Path, cache: Path, tied: bool, biased: bool) -> None:
    source = _tiny(tie_word_embeddings=tied, attention_bias=biased, mlp_bias=biased)
    read = _written(tmp_path / "m.gguf", source, cache)
    expected = _tensors(source)
    assert set(read.names()) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(read.tensor(name), tensor), name


def test_the_configuration_is_what_hugging_face_would_write(tmp_path: Path, cache: Path) -> None:
    source = _tiny(tie_word_embeddings=True, attention_bias=True)
    read = _written(tmp_path / "m.gguf", source, cache, extra={"llama.rope.freq_base": 50_000.0}).config
    same = (
        "hidden_act",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "vocab_size",
    )
    for key in ("model_type", *SHAPE, *same):
        assert read[key] == source.config[key], key
    assert read["head_dim"] == 16
    assert read["rope_parameters"] == {"rope_type": "default", "rope_theta": 50_000.0}
    assert LlamaConfig(**read).rope_parameters["rope_theta"] == 50_000.0


# The error that each packing leaves in random normal weights, relative to their deviation.
@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        (Kind.F16, 1e-3),
        (Kind.BF16, 1e-2),
        (Kind.Q8_0, 0.03),
        (Kind.Q5_1, 0.15),
        (Kind.Q5_0, 0.2),
        (Kind.Q4_1, 0.3),
        (Kind.Q4_0, 0.4),
    ],
)
def test_packed_matrices_are_unpacked_in_their_places(
    tmp_path: Path, cache: Path, kind: Kind, tolerance: float
) -> None:
    source = _tiny()
    read = _written(tmp_path / "m.gguf", source, cache, kind=kind)
    for name, tensor in _tensors(source).items():
        error = (read.tensor(name).float() - tensor).abs().max() / tensor.std()
        assert error < tolerance * 2, name
        assert (read.tensor(name).float() - tensor).std() / tensor.std() < tolerance / 2, name


@pytest.mark.parametrize(
    ("kind", "stored", "computed"),
    [
        (Kind.F32, torch.float32, "float32"),
        (Kind.F16, torch.float16, "float16"),
        (Kind.BF16, torch.bfloat16, "bfloat16"),
        (Kind.Q8_0, torch.float32, "bfloat16"),
    ],
)
def test_plain_dtypes_stay_as_stored(
    tmp_path: Path, cache: Path, kind: Kind, stored: torch.dtype, computed: str
) -> None:
    read = _written(tmp_path / "m.gguf", _tiny(), cache, kind=kind)
    assert read.tensor("model.layers.0.mlp.up_proj.weight").dtype == stored
    assert read.config["dtype"] == computed


def test_the_frequency_factors_of_llama3_become_its_scaling(tmp_path: Path, cache: Path) -> None:
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = torch.from_numpy(llama3_factors(16, 500_000.0, scaling)).float()
    extra = {"llama.rope.freq_base": 500_000.0}
    read = _written(tmp_path / "m.gguf", _tiny(), cache, extra=extra, extra_tensors={"rope_freqs.weight": factors})
    assert read.config["rope_scaling"] == {"rope_type": "llama3", **scaling}
    assert read.config["rope_theta"] == 500_000.0
    assert "rope_freqs.weight" not in read.names()


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_the_frequency_factors_are_those_of_transformers(head_dim: int) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=head_dim, rope_parameters={"rope_type": "llama3", "rope_theta": 500_000.0, **scaling})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500_000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    expected = plain / torch.from_numpy(llama3_factors(head_dim, 500_000.0, scaling))
    torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=0)


def test_other_frequency_factors_are_refused(tmp_path: Path, cache: Path) -> None:
    extra = {"rope_freqs.weight": torch.linspace(1, 3, 8)}
    with pytest.raises(SourceError, match=r"rope_freqs\.weight"):
        _written(tmp_path / "m.gguf", _tiny(), cache, extra_tensors=extra)


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 16.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
        ),
        ({"type": "none"}, None),
    ],
)
def test_a_scaling_in_the_keys_is_carried_over(
    tmp_path: Path, cache: Path, keys: dict[str, object], scaling: dict[str, object] | None
) -> None:
    extra = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    assert _written(tmp_path / "m.gguf", _tiny(), cache, extra=extra).config["rope_scaling"] == scaling


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"type": "longrope"}, "longrope"),
        ({"type": "linear"}, r"llama\.rope\.scaling\.factor is missing"),
        ({"type": "yarn", "factor": 4.0}, r"original_context_length is missing"),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_attn_factor": 2.0},
            r"llama\.rope\.scaling\.yarn_attn_factor is 2",
        ),
    ],
)
def test_a_scaling_that_is_not_served_or_not_whole_is_refused_by_key(
    tmp_path: Path, cache: Path, keys: dict[str, object], named: str
) -> None:
    extra = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    with pytest.raises(SourceError, match=named):
        _written(tmp_path / "m.gguf", _tiny(), cache, extra=extra)


@pytest.mark.parametrize("kind", [Kind.IQ4_NL, Kind.Q8_K, Kind.TQ1_0, Kind.MXFP4])
def test_a_tensor_of_another_type_is_named_at_once_with_the_types_that_are_served(
    tmp_path: Path, cache: Path, kind: Kind
) -> None:
    values, size = GGML_QUANT_SIZES[kind]
    source = _tiny()
    raw = {"blk.1.ffn_up.weight": (np.zeros((96, max(1, 64 // values) * size), np.uint8), kind)}
    tensors = {name: tensor for name, tensor in _tensors(source).items() if name != "model.layers.1.mlp.up_proj.weight"}
    write_gguf(tmp_path / "m.gguf", source.config, tensors, raw_tensors=raw)
    with pytest.raises(SourceError) as caught:
        open_checkpoint(str(tmp_path / "m.gguf"), cache=cache)
    assert f"tensor blk.1.ffn_up.weight is of type {kind.name}" in caught.value.message
    served = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"
    assert caught.value.message.endswith(f"served: {served}")


def test_a_matrix_of_a_k_type_is_unpacked_under_its_name(tmp_path: Path, cache: Path) -> None:
    source = _tiny(intermediate_size=256)
    name = "model.layers.0.mlp.down_proj.weight"
    data = np.random.default_rng(2).integers(0, 64, (64, 144), dtype=np.uint8)  # finite scales
    tensors = {key: tensor for key, tensor in _tensors(source).items() if key != name}
    path = tmp_path / "m.gguf"
    write_gguf(path, source.config, tensors, raw_tensors={"blk.0.ffn_down.weight": (data, Kind.Q4_K)})
    read = open_checkpoint(str(path), cache=cache).checkpoint
    assert torch.equal(read.tensor(name), torch.from_numpy(dequantize(data, Kind.Q4_K)))


def test_an_architecture_that_is_not_served_is_named_with_those_that_are(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match=r"'mamba' is not served from GGUF; served: gemma2, gemma3, llama"):
        open_checkpoint(str(write_gguf(tmp_path / "m.gguf", _tiny().config, {}, architecture="mamba")), cache=cache)


def test_experts_are_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match=r"llama\.expert_count"):
        _written(tmp_path / "m.gguf", _tiny(), cache, extra={"llama.expert_count": 8})


def test_a_tensor_of_another_family_is_named(tmp_path: Path, cache: Path) -> None:
    extra = {"blk.0.ssm_conv1d.weight": torch.zeros(4, 4)}
    with pytest.raises(SourceError, match=r"blk\.0\.ssm_conv1d\.weight"):
        _written(tmp_path / "m.gguf", _tiny(), cache, extra_tensors=extra)


def test_a_piece_of_a_split_model_is_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match="one of 2 pieces"):
        _written(tmp_path / "m.gguf", _tiny(), cache, extra={"split.count": 2})


def test_a_vocabulary_alone_is_no_model(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "m.gguf", _tiny().config, {})
    with pytest.raises(SourceError, match=r"token_embd\.weight"):
        open_checkpoint(str(tmp_path / "m.gguf"), cache=cache)


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.999])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, cache: Path, keep: float) -> None:
    path = write_gguf(tmp_path / "m.gguf", _tiny().config, _tensors(_tiny()))
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(SourceError, match=r"m\.gguf"):
        open_checkpoint(str(path), cache=cache)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04" * 1000)
    with pytest.raises(SourceError, match="expected a whole GGUF file"):
        open_checkpoint(str(tmp_path / "m.gguf"), cache=cache)


def test_other_weights_are_another_revision(tmp_path: Path, cache: Path) -> None:
    one, same = (_written(tmp_path / f"{name}.gguf", _tiny(), cache) for name in "ab")
    other = _written(tmp_path / "c.gguf", tiny_llama(4, vocab_size=100, **SHAPE)[1], cache)
    assert one.revision != other.revision
    assert len(one.revision) == len(same.revision) == 32


def _lying(path: Path, cache: Path, **values: int) -> GgufCheckpoint:
    file = open_file(path)
    told = {f"llama.attention.{name}": value for name, value in values.items()}
    file = replace(file, values={**file.values, **told})
    return GgufCheckpoint(file, read_metadata(file), cache)


def test_a_model_without_heads_is_refused_by_its_key(tmp_path: Path, cache: Path) -> None:
    source = _tiny()
    write_gguf(tmp_path / "m.gguf", source.config, _tensors(source))
    with pytest.raises(SourceError, match="head_count"):
        _lying(tmp_path / "m.gguf", cache, head_count=0)


@pytest.mark.parametrize(
    ("name", "values"),
    [("q_proj", {"head_count": 5}), ("k_proj", {"head_count_kv": 3}), ("k_proj", {"head_count_kv": 0})],
)
def test_heads_that_a_tensors_rows_do_not_make_are_refused_by_its_name(
    tmp_path: Path, cache: Path, name: str, values: dict[str, int]
) -> None:
    source = _tiny()
    write_gguf(tmp_path / "m.gguf", source.config, _tensors(source))
    lying = _lying(tmp_path / "m.gguf", cache, **values)
    with pytest.raises(SourceError, match=name):
        lying.tensor(f"model.layers.0.self_attn.{name}.weight")
