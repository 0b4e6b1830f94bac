"""Converts a model of llama2.c to a Hugging Face directory.

Source of the format: llama2.c's run.c (`Config`, `memory_map_weights`): seven int32, then float32 arrays one after another.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from worker.sources.gguf.tensors import rotary_rows_in_order

_HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
Shape = dict[str, int]


def _arrays(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each array, in the file's order; those of the layers are stacked."""
    dim, hidden, layers = shape["dim"], shape["hidden_dim"], shape["n_layers"]
    head = dim // shape["n_heads"]
    kv = head * shape["n_kv_heads"]
    yield "model.embed_tokens", (shape["vocab_size"], dim)
    yield "input_layernorm", (layers, dim)
    yield "self_attn.q_proj", (layers, dim, dim)
    yield "self_attn.k_proj", (layers, kv, dim)
    yield "self_attn.v_proj", (layers, kv, dim)
    yield "self_attn.o_proj", (layers, dim, dim)
    yield "post_attention_layernorm", (layers, dim)
    yield "mlp.gate_proj", (layers, hidden, dim)
    yield "mlp.down_proj", (layers, dim, hidden)
    yield "mlp.up_proj", (layers, hidden, dim)
    yield "model.norm", (dim,)
    yield "rotary tables", (2, shape["seq_len"], head // 2)


def _tensors(shape: Shape, values: npt.NDArray[np.float32]) -> dict[str, torch.Tensor]:
    tensors, start = {}, 0
    heads = {"self_attn.q_proj": shape["n_heads"], "self_attn.k_proj": shape["n_kv_heads"]}
    for name, dims in _arrays(shape):
        size = int(np.prod(dims))
        whole = torch.from_numpy(values[start : start + size].reshape(dims).copy())
        start += size
        if name.startswith("model."):
            tensors[f"{name}.weight"] = whole
        elif name != "rotary tables":
            for layer, tensor in enumerate(whole):  # q and k keep a rotary pair's two halves side by side
                rows = rotary_rows_in_order(tensor, heads[name]) if name in heads else tensor
                tensors[f"model.layers.{layer}.{name}.weight"] = rows.clone()
    assert start == values.size, f"{values.size - start} numbers are left"
    return tensors


def convert(weights: Path, sentencepiece: Path, directory: Path) -> Path:
    """Write `directory` and return it. The embedding is the head too."""
    content = weights.read_bytes()
    shape = dict(zip(_HEADER, np.frombuffer(content[:28], "<i4").tolist(), strict=True))
    directory.mkdir(parents=True, exist_ok=True)
    save_file(_tensors(shape, np.frombuffer(content[28:], "<f4")), directory / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape["dim"],
        "intermediate_size": shape["hidden_dim"],
        "num_hidden_layers": shape["n_layers"],
        "num_attention_heads": shape["n_heads"],
        "num_key_value_heads": shape["n_kv_heads"],
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": shape["seq_len"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    shutil.copy(sentencepiece, directory / "tokenizer.model")
    tokenizer = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return directory
