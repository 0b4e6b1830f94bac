"""A model in one GGUF file, as a `Checkpoint`."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from shared.tokenizer import TokenizerBundle
from worker.sources.config import eos_token_ids
from worker.sources.digest import revision
from worker.sources.gguf.config import Facts, find, read_config
from worker.sources.gguf.file import GgufFile, open_file
from worker.sources.gguf.metadata import Metadata, read_metadata
from worker.sources.gguf.tensors import GgufTensors
from worker.sources.gguf.tokenizer import generation_config, read_tokenizer


class GgufCheckpoint:
    """Weights and configuration of a GGUF file. Raises SourceError naming file, key or tensor."""

    def __init__(self, file: GgufFile, metadata: Metadata, cache: Path):
        _, architecture = find(metadata)
        self._tensors = GgufTensors(file, architecture)
        self.config: Mapping[str, Any] = read_config(metadata, _facts(self._tensors))
        self._heads = {
            "q_proj": self.config["num_attention_heads"],
            "k_proj": self.config["num_key_value_heads"],
        }
        self.revision = revision(self.config, [file.path], cache)
        self.eos_token_ids = eos_token_ids(generation_config(metadata), self.config)

    def names(self) -> Collection[str]:
        return self._tensors.names()

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as Hugging Face lays it out. KeyError names a missing one."""
        return self._tensors.tensor(name, self._heads)


def open_gguf(path: Path, cache: Path) -> tuple[GgufCheckpoint, TokenizerBundle]:
    """The file's model and tokenizer. Raises SourceError."""
    file = open_file(path)
    metadata = read_metadata(file)
    return GgufCheckpoint(file, metadata, cache), read_tokenizer(metadata)


def _facts(tensors: GgufTensors) -> Facts:
    return Facts(
        names=tensors.names(),
        vocab_size=tensors.vocab_size(),
        dtype=tensors.matrix_dtype(),
        factors=tensors.rope_factors(),
    )
