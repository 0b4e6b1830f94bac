"""Random models of transformers' and the runner on them."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from tests.bench.gpu.bed import Bed, Tensor
from tests.fakes.device import LaggingQueue, Recordings
from worker.execution.build import Device, Runner, build
from worker.execution.config import Dtype, RunnerConfig
from worker.models.checkpoint import Checkpoint

BLOCK = 16
Sizes = Mapping[str, int]

SMALL: Sizes = {  # as stories260K
    "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 512,
}  # fmt: skip
TOY: Sizes = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 67,
}  # fmt: skip
BILLION: Sizes = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip
EIGHT_BILLION: Sizes = {  # Llama 3 8B
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip


class Weights:
    """transformers' model as a worker.models.checkpoint.Checkpoint."""

    def __init__(self, model: Any):
        self._tensors: dict[str, Tensor] = model.state_dict()
        self._config: dict[str, Any] = model.config.to_dict()

    @property
    def config(self) -> Mapping[str, Any]:
        """See Checkpoint."""
        return self._config

    @property
    def revision(self) -> str:
        """See Checkpoint."""
        return "random"

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """None: what is measured runs to its length."""
        return ()

    def names(self) -> Collection[str]:
        """See Checkpoint."""
        return self._tensors.keys()

    def tensor(self, name: str) -> Tensor:
        """See Checkpoint."""
        return self._tensors[name]


def llama(bed: Bed, sizes: Sizes, dtype: torch.dtype) -> Any:
    """A random Llama on the device. Weights are so large that its choices are no near ties."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    spread = sizes["hidden_size"] ** -0.5  # a product keeps its input's size
    config = LlamaConfig(
        **sizes, max_position_embeddings=8192, rope_theta=5e5, tie_word_embeddings=False, initializer_range=spread
    )
    torch.set_default_dtype(dtype)
    try:
        with torch.device(bed.device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def made(
    bed: Bed, checkpoint: Checkpoint, *, dtype: Dtype, slots: int, longest: int, graphs: bool = True,
    deterministic: bool = False, torch_compile: bool = False, step_tokens: int = 8192, kv: bool = True,
) -> Runner:  # fmt: skip
    """A runner with KV for `slots` sequences of `longest` tokens; not `kv`: of what a full step leaves."""
    config = RunnerConfig(
        dtype=dtype,
        max_running=slots,
        step_tokens=step_tokens,
        max_model_len=longest,
        kv_bytes=_kv_bytes(checkpoint.config, dtype, slots, longest) if kv else None,
        memory_share=1.0 if not bed.dry else 1e-4,
        threads=1,
        backend="triton",
        deterministic=deterministic,
        graphs=graphs,
        torch_compile=torch_compile,
    )
    device = Device(queue=LaggingQueue(), graphs=Recordings() if graphs else None) if bed.dry else None
    return build(checkpoint, config, device=device)


def kv_token_bytes(sizes: Mapping[str, Any], itemsize: int) -> int:
    """K and V of one position, in all layers."""
    dim = sizes["hidden_size"] // sizes["num_attention_heads"]
    return int(2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * dim * itemsize)


def _kv_bytes(config: Mapping[str, Any], dtype: Dtype, slots: int, longest: int) -> int:
    """The scheduler keeps some blocks back, and a sequence may be one token longer than seen."""
    blocks = (slots + 1) * (-(-longest // BLOCK) + 1)
    return int(blocks * 1.03 + 2) * BLOCK * kv_token_bytes(config, 4 if dtype == "float32" else 2)
