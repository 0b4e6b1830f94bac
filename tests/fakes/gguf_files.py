"""GGUF files written from a Llama's tensors as llama.cpp's converter writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

from worker.sources.gguf.tensors import translate

TOKENS = ("<unk>", "<s>", "</s>", "a", "b", "ab")


def llama_cpp_rows(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Q's or K's rows as llama.cpp keeps them: the two halves of a head's rotary pairs interleaved.

    Source: the permutation that llama.cpp's convert_hf_to_gguf.py gives them.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _part_names(layers: int) -> list[str]:
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    in_layers = [
        f"blk.{layer}.{part}.{kind}" for layer in range(layers) for part in parts for kind in ("weight", "bias")
    ]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *in_layers]


def _laid_out(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    if ".attn_q." in name:
        return llama_cpp_rows(tensor, config["num_attention_heads"])
    if ".attn_k." in name:
        return llama_cpp_rows(tensor, config["num_key_value_heads"])
    return tensor


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
) -> Path:
    """Matrices in `kind`, vectors in float32; `extra` are further metadata, `extra_tensors` tensors under GGUF's own names."""
    writer = GGUFWriter(str(path), architecture)
    _add_metadata(writer, config, extra or {})
    for name in _part_names(config["num_hidden_layers"]):
        tensor = tensors.get(translate(name) or "")
        if tensor is not None:
            _add_tensor(writer, name, _laid_out(name, tensor, config), kind)
    for name, tensor in (extra_tensors or {}).items():
        _add_tensor(writer, name, tensor, Kind.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
