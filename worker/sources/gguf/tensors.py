"""A GGUF file's tensors under Hugging Face's names, in its layout, unpacked."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, ReaderTensor

from worker.sources.errors import SourceError
from worker.sources.gguf.architecture import Architecture
from worker.sources.gguf.quants import PACKINGS, unpack
from worker.sources.gguf.rotary import FACTOR_TENSORS, Factors

EMBEDDING = "model.embed_tokens.weight"
_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
# What a packed model computes in unless told otherwise.
_PACKED_DTYPE = "bfloat16"


class GgufTensors:
    """The tensors by Hugging Face's names. Raises SourceError for one that it cannot name or unpack."""

    def __init__(self, path: Path, architecture: Architecture, tensors: Sequence[ReaderTensor]):
        self._path = path
        self._architecture = architecture
        for tensor in tensors:
            self._check_type(tensor)
        self._factors = {tensor.name: tensor for tensor in tensors if tensor.name in FACTOR_TENSORS}
        self._tensors = {self._named(tensor): tensor for tensor in tensors if tensor.name not in FACTOR_TENSORS}
        if EMBEDDING not in self._tensors:
            raise SourceError(
                f"{path}: tensor token_embd.weight is missing; expected a whole model, not a vocabulary alone"
            )

    def _check_type(self, tensor: ReaderTensor) -> None:
        kind = tensor.tensor_type
        if kind not in _PLAIN and kind not in PACKINGS:
            served = ", ".join(known.name for known in (*_PLAIN, *PACKINGS))
            raise SourceError(
                f"{self._path}: tensor {tensor.name} is of type {kind.name}, which is not served; served: {served}"
            )

    def _named(self, tensor: ReaderTensor) -> str:
        name = self._architecture.translate(tensor.name)
        if name is None:
            family = self._architecture.model_type
            raise SourceError(f"{self._path}: tensor {tensor.name} is none of the {family} family's")
        return name

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def vocab_size(self) -> int:
        """The embedding's rows."""
        return int(self._tensors[EMBEDDING].shape[-1])

    def rope_factors(self) -> Factors:
        """By what each rotary frequency is divided, by GGUF's own names, where the file says so."""
        return {name: to_torch(tensor).numpy().astype(np.float32) for name, tensor in self._factors.items()}

    def tensor(self, name: str, heads: Mapping[str, int]) -> torch.Tensor:
        """The tensor as Hugging Face lays it out: in its plain dtype, or in float32 where it is packed or is a norm's.

        `heads` are the numbers of heads of `q_proj` and `k_proj`. KeyError names a missing tensor.
        """
        tensor = to_torch(self._tensors[name])
        module = name.rsplit(".", 2)[-2]
        if module in heads and self._architecture.rows_alternate:
            return rotary_rows_in_order(tensor, heads[module])
        if module.endswith("norm") and self._architecture.norm_offset:
            return tensor.float() - self._architecture.norm_offset
        return tensor

    def matrix_dtype(self) -> str:
        """The dtype to compute in: that of the embedding where it is plain, else bfloat16."""
        plain = _PLAIN.get(self._tensors[EMBEDDING].tensor_type)
        return str(plain).removeprefix("torch.") if plain is not None else _PACKED_DTYPE


def to_torch(tensor: ReaderTensor) -> torch.Tensor:
    """A copy, out of the mapped file."""
    plain = _PLAIN.get(tensor.tensor_type)
    if plain is None:
        return torch.from_numpy(unpack(tensor.data, tensor.tensor_type))
    return torch.from_numpy(np.array(tensor.data)).view(plain)


def rotary_rows_in_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the reordering that llama.cpp's converter gives the rows of Q and K (weights [rows, in], or biases [rows]).

    There a head's rows alternate between the two halves of the rotary pairs; Hugging Face keeps the halves apart.
    """
    width = rows.shape[0] // heads
    pairs = rows.reshape(heads, width // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
