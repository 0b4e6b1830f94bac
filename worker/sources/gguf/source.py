"""A model in one GGUF file, as a `Checkpoint`."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader

from shared.tokenizer import TokenizerBundle
from worker.sources.config import eos_token_ids
from worker.sources.digest import revision
from worker.sources.gguf.config import check_served, read_config
from worker.sources.gguf.metadata import Metadata, open_reader, read_metadata
from worker.sources.gguf.tensors import GgufTensors, rotary_rows_in_order
from worker.sources.gguf.tokenizer import generation_config, read_tokenizer


class GgufCheckpoint:
    """Weights and configuration of a GGUF file. Raises SourceError naming file, key or tensor."""

    def __init__(self, path: Path, reader: GGUFReader, metadata: Metadata, cache: Path):
        check_served(metadata)
        self._tensors = GgufTensors(path, reader.tensors)
        self.config: Mapping[str, Any] = _config(metadata, self._tensors)
        self.revision = revision(self.config, [path], cache)
        self.eos_token_ids = eos_token_ids(generation_config(metadata), self.config)

    def names(self) -> Collection[str]:
        return self._tensors.names()

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, rotary rows in Hugging Face's order. KeyError names a missing one."""
        tensor = self._tensors.unpacked(name)
        if ".self_attn.q_proj." in name:
            return rotary_rows_in_order(tensor, self.config["num_attention_heads"])
        if ".self_attn.k_proj." in name:
            return rotary_rows_in_order(tensor, self.config["num_key_value_heads"])
        return tensor


def open_gguf(path: Path, cache: Path) -> tuple[GgufCheckpoint, TokenizerBundle]:
    """The file's model and tokenizer. Raises SourceError."""
    reader = open_reader(path)
    metadata = read_metadata(path, reader)
    return GgufCheckpoint(path, reader, metadata, cache), read_tokenizer(metadata)


def _config(metadata: Metadata, tensors: GgufTensors) -> dict[str, Any]:
    return read_config(
        metadata,
        names=tensors.names(),
        vocab_size=tensors.vocab_size(),
        dtype=tensors.matrix_dtype(),
        rope_factors=tensors.rope_factors(),
    )
