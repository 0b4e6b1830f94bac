"""A GGUF file's tensors under Hugging Face's names, in its layout, unpacked."""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from worker.sources.errors import SourceError
from worker.sources.gguf.architecture import Architecture
from worker.sources.gguf.file import GgufFile, StoredTensor
from worker.sources.gguf.quants import PACKINGS, unpack
from worker.sources.gguf.rotary import FACTOR_TENSORS, Factors

EMBEDDING = "model.embed_tokens.weight"
_PLAIN = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
# What a packed model computes in unless told otherwise.
_PACKED_DTYPE = "bfloat16"


class GgufTensors:
    """The tensors by Hugging Face's names. Raises SourceError for one that it cannot name or unpack, or that is cut short."""

    def __init__(self, file: GgufFile, architecture: Architecture):
        self._file = file
        self._architecture = architecture
        for tensor in file.tensors:
            file.rows(tensor, self._row_bytes(tensor))
        self._factors = [tensor for tensor in file.tensors if tensor.name in FACTOR_TENSORS]
        self._tensors = {self._named(tensor): tensor for tensor in file.tensors if tensor.name not in FACTOR_TENSORS}
        if EMBEDDING not in self._tensors:
            raise SourceError(
                f"{file.path}: tensor token_embd.weight is missing; expected a whole model, not a vocabulary alone"
            )

    def _row_bytes(self, tensor: StoredTensor) -> int:
        width = tensor.shape[-1]
        if tensor.kind in _PLAIN:
            return width * _PLAIN[Kind(tensor.kind)].itemsize
        packing = PACKINGS.get(Kind(tensor.kind)) if tensor.kind in PACKINGS else None
        if packing is None:
            served = ", ".join(known.name for known in (*_PLAIN, *PACKINGS))
            raise SourceError(
                f"{self._file.path}: tensor {tensor.name} is of type {_type_name(tensor.kind)}, which is not served; "
                f"served: {served}"
            )
        if width % packing.values:
            raise SourceError(
                f"{self._file.path}: tensor {tensor.name} has rows of {width} values in blocks of {packing.values}"
            )
        return width // packing.values * packing.size

    def _named(self, tensor: StoredTensor) -> str:
        name = self._architecture.translate(tensor.name)
        if name is None:
            family = self._architecture.model_type
            raise SourceError(f"{self._file.path}: tensor {tensor.name} is none of the {family} family's")
        return name

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def vocab_size(self) -> int:
        """The embedding's rows."""
        return self._tensors[EMBEDDING].shape[0]

    def rope_factors(self) -> Factors:
        """By what each rotary frequency is divided, by GGUF's own names, where the file says so."""
        return {tensor.name: self._unpacked(tensor).float().numpy() for tensor in self._factors}

    def tensor(self, name: str, heads: Mapping[str, int]) -> torch.Tensor:
        """The tensor as Hugging Face lays it out: in its plain dtype, or in float32 where it is packed or is a norm's.

        `heads` are the numbers of heads of `q_proj` and `k_proj`. KeyError names a missing tensor.
        """
        tensor = self._unpacked(self._tensors[name])
        module = name.rsplit(".", 2)[-2]
        if module in heads and self._architecture.rows_alternate:
            if heads[module] < 1 or tensor.shape[0] % (2 * heads[module]):
                message = f"{tensor.shape[0]} rows, which are not {heads[module]} heads of even width"
                raise SourceError(f"{self._file.path}: tensor {name} has {message}")
            return rotary_rows_in_order(tensor, heads[module])
        if module.endswith("norm") and self._architecture.norm_offset:
            return tensor.float() - self._architecture.norm_offset
        return tensor

    def matrix_dtype(self) -> str:
        """The dtype to compute in: that of the embedding where it is plain, else bfloat16."""
        kind = self._tensors[EMBEDDING].kind
        return str(_PLAIN[Kind(kind)]).removeprefix("torch.") if kind in _PLAIN else _PACKED_DTYPE

    def _unpacked(self, tensor: StoredTensor) -> torch.Tensor:
        """A copy, out of the mapped file."""
        rows, kind = self._file.rows(tensor, self._row_bytes(tensor)), Kind(tensor.kind)
        if kind in _PLAIN:
            return torch.from_numpy(np.array(rows)).view(_PLAIN[kind])
        return torch.from_numpy(unpack(rows, kind))


def _type_name(kind: int) -> str:
    try:
        return str(Kind(kind).name)
    except ValueError:
        return f"number {kind}"


def rotary_rows_in_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the reordering that llama.cpp's converter gives the rows of Q and K (weights [rows, in], or biases [rows]).

    There a head's rows alternate between the two halves of the rotary pairs; Hugging Face keeps the halves apart.
    """
    width = rows.shape[0] // heads
    pairs = rows.reshape(heads, width // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
