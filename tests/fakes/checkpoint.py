"""Checkpoints in memory, made from transformers' own random models."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from worker.models.checkpoint import Checkpoint


class MemoryCheckpoint:
    """A `worker.models.checkpoint.Checkpoint` over a dict."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], eos: tuple[int, ...] = ()):
        self.config = config
        self.revision = "memory"
        self.eos_token_ids = eos
        self._tensors = dict(tensors)

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def without(self, name: str) -> Checkpoint:
        """The same one, a tensor short."""
        rest = {key: value for key, value in self._tensors.items() if key != name}
        return MemoryCheckpoint(self.config, rest, self.eos_token_ids)

    def replacing(self, name: str, tensor: torch.Tensor) -> Checkpoint:
        """The same one with another tensor in one place."""
        return MemoryCheckpoint(self.config, {**self._tensors, name: tensor}, self.eos_token_ids)

    def configured(self, **changes: Any) -> Checkpoint:
        """The same one with other configuration keys."""
        return MemoryCheckpoint({**self.config, **changes}, self._tensors, self.eos_token_ids)


def tiny_llama(seed: int = 0, eos: tuple[int, ...] = (2,), **changes: Any) -> tuple[LlamaForCausalLM, MemoryCheckpoint]:
    """A random Llama in float32, large enough weights that its choices are not near ties, and the same as a checkpoint."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": 199,
        "hidden_size": 96,
        "intermediate_size": 172,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()
    for name, tensor in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "layernorm.weight")):
            torch.nn.init.normal_(tensor, mean=0.5, std=0.3)
    return model, MemoryCheckpoint(model.config.to_dict(), model.state_dict(), eos)
