"""Where a model's weights come from, whatever the file format. The edges (`worker.sources`) implement it; models consume it."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch


class Checkpoint(Protocol):
    """A model on disk, in Hugging Face's names and layouts (a GGUF's are translated: renamed, rotary rows back in order)."""

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json's keys (`model_type`, `hidden_size`, ...)."""

    @property
    def revision(self) -> str:
        """Hex digest over configuration and weights: equal digests mean equal models."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a sequence, from generation_config.json, else the configuration."""

    def names(self) -> Collection[str]:
        """The tensors that it holds."""

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in the dtype it is stored in (dequantised to float32 where it is packed). KeyError names a missing one."""
