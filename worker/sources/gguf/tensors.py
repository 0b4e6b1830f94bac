"""A GGUF file's tensors under Hugging Face's names, in its layout, unpacked."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, ReaderTensor
from gguf.quants import dequantize

from worker.sources.errors import SourceError

ROPE_FACTORS = "rope_freqs.weight"
EMBEDDING = "model.embed_tokens.weight"

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")
_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
    GGMLQuantizationType.F64: torch.float64,
}
# What a packed model computes in unless told otherwise.
_PACKED_DTYPE = "bfloat16"


def translate(name: str) -> str | None:
    """Hugging Face's name of a tensor of the llama family; None where it has none."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        return f"{_WHOLE[part]}.{kind}" if part in _WHOLE else None
    return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}" if part in _IN_LAYER else None


class GgufTensors:
    """The tensors by Hugging Face's names. Raises SourceError for one that it cannot name."""

    def __init__(self, path: Path, tensors: Sequence[ReaderTensor]):
        self._path = path
        self._factors = next((tensor for tensor in tensors if tensor.name == ROPE_FACTORS), None)
        self._tensors = {self._named(tensor): tensor for tensor in tensors if tensor.name != ROPE_FACTORS}
        if EMBEDDING not in self._tensors:
            raise SourceError(
                f"{path}: tensor token_embd.weight is missing; expected a whole model, not a vocabulary alone"
            )

    def _named(self, tensor: ReaderTensor) -> str:
        name = translate(tensor.name)
        if name is None:
            raise SourceError(f"{self._path}: tensor {tensor.name} is none of the llama family's")
        return name

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def vocab_size(self) -> int:
        """The embedding's rows."""
        return int(self._tensors[EMBEDDING].shape[-1])

    def rope_factors(self) -> npt.NDArray[np.float32] | None:
        """By what each rotary frequency is divided, where the file says so."""
        return None if self._factors is None else to_torch(self._factors).numpy().astype(np.float32)

    def unpacked(self, name: str) -> torch.Tensor:
        """The tensor in its plain dtype, or dequantised to float32 where it is packed. KeyError names a missing one."""
        tensor = self._tensors[name]
        try:
            return to_torch(tensor)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise SourceError(
                f"{self._path}: tensor {tensor.name} is packed as {kind}, which cannot be unpacked"
            ) from None

    def matrix_dtype(self) -> str:
        """The dtype to compute in: that of the embedding where it is plain, else bfloat16."""
        plain = _PLAIN.get(self._tensors[EMBEDDING].tensor_type)
        return str(plain).removeprefix("torch.") if plain is not None else _PACKED_DTYPE


def to_torch(tensor: ReaderTensor) -> torch.Tensor:
    """A copy, out of the mapped file. NotImplementedError for a packing that the gguf package cannot undo."""
    plain = _PLAIN.get(tensor.tensor_type)
    if plain is None:
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))
    return torch.from_numpy(np.array(tensor.data)).view(plain)


def rotary_rows_in_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the reordering that llama.cpp's converter gives the rows of Q and K (weights [rows, in], or biases [rows]).

    There a head's rows alternate between the two halves of the rotary pairs; Hugging Face keeps the halves apart.
    """
    width = rows.shape[0] // heads
    pairs = rows.reshape(heads, width // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
