"""GGUF files written from a Hugging Face model's tensors as llama.cpp's converter writes them.

Names of tensors are those of the gguf package's own table. Source of layouts and keys: llama.cpp's convert_hf_to_gguf.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

TOKENS = ("<unk>", "<s>", "</s>", "a", "b", "ab")
_NORM_OFFSETS = {"gemma2": 1.0, "gemma3": 1.0}


def llama_cpp_rows(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Q's or K's rows as llama.cpp keeps a llama's: the two halves of a head's rotary pairs interleaved."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _names(architecture: str, layers: int) -> gguf.TensorNameMap:
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    return gguf.get_tensor_name_map(kind, layers)


def _laid_out(architecture: str, name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    if architecture == "llama" and "q_proj" in name:
        return llama_cpp_rows(tensor, config["num_attention_heads"])
    if architecture == "llama" and "k_proj" in name:
        return llama_cpp_rows(tensor, config["num_key_value_heads"])
    return tensor + _NORM_OFFSETS.get(architecture, 0.0) if "norm" in name else tensor


def _add_metadata(writer: GGUFWriter, config: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(TOKENS))
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([2, 3, 3, 1, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in extra.items():
        writer.add_key_value(key, value, _type_of(value))


def _type_of(value: object) -> gguf.GGUFValueType:
    if isinstance(value, int):
        return gguf.GGUFValueType.UINT32
    return gguf.GGUFValueType.FLOAT32 if isinstance(value, float) else gguf.GGUFValueType.STRING


def _add_tensor(writer: GGUFWriter, name: str, tensor: torch.Tensor, kind: Kind) -> None:
    values = tensor.float().numpy()
    if kind is Kind.F32 or tensor.ndim == 1:
        writer.add_tensor(name, values)
    elif kind is Kind.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    *,
    kind: Kind = Kind.F32,
    architecture: str = "llama",
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, torch.Tensor] | None = None,
    raw_tensors: Mapping[str, tuple[np.ndarray, Kind]] | None = None,
) -> Path:
    """Matrices in `kind`, vectors in float32; `extra` are further metadata, `extra_tensors` tensors under GGUF's own names,
    `raw_tensors` bytes of a type under GGUF's own names."""
    writer = GGUFWriter(str(path), architecture)
    _add_metadata(writer, config, extra or {})
    names = _names(architecture, config["num_hidden_layers"])
    for name, tensor in tensors.items():
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert named is not None, f"{architecture} has no {name}"
        _add_tensor(writer, named, _laid_out(architecture, name, tensor, config), kind)
    for name, tensor in (extra_tensors or {}).items():
        _add_tensor(writer, name, tensor, Kind.F32)
    for name, (data, its_kind) in (raw_tensors or {}).items():
        writer.add_tensor(name, data, raw_dtype=its_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
