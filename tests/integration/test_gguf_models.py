"""A GGUF file of every family, and of every type that can be written, computes what transformers computes from the same weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from tests.fakes.forced import forced_logits
from tests.fakes.gguf_families import CASES, SIZES, original, written
from worker.execution.build import ModelRunner, RunnerConfig, build
from worker.models.checkpoint import Checkpoint

LENGTH = 32  # the least "original" length among the cases' rotary scalings
TOKENS = torch.randint(3, SIZES["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(4)).tolist()
TOLERANCE = 1e-4


@contextmanager
def running(checkpoint: Checkpoint, dtype: Any = "float32") -> Iterator[ModelRunner]:
    config = RunnerConfig(
        dtype=dtype, max_running=2, step_tokens=64, max_model_len=LENGTH, kv_bytes=8 << 20, threads=2, depth=0
    )
    runner = build(checkpoint, config)
    try:
        yield runner
    finally:
        runner.close()


@pytest.mark.parametrize("name", CASES)
def test_a_float32_file_of_each_family_gives_the_logits_of_the_model_it_was_written_from(
    tmp_path: Path, name: str
) -> None:
    model = original(CASES[name])
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    with running(written(tmp_path / "m.gguf", CASES[name], model)) as runner:
        assert (forced_logits(runner, TOKENS) - expected).abs().max() < TOLERANCE
    assert expected.std() > 0.5


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_1, Kind.Q5_0, Kind.Q4_1, Kind.Q4_0])
def test_a_packed_file_gives_the_logits_of_its_unpacked_weights(tmp_path: Path, name: str, kind: Kind) -> None:
    model = original(CASES[name])
    checkpoint = written(tmp_path / "m.gguf", CASES[name], model, kind=kind)
    unpacked = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32, attn_implementation="eager").eval()
    unpacked.load_state_dict({name: checkpoint.tensor(name).float() for name in checkpoint.names()}, strict=False)
    unpacked.tie_weights()
    with torch.inference_mode():
        expected = unpacked(torch.tensor([TOKENS])).logits[0]
    with running(checkpoint) as runner:
        assert (forced_logits(runner, TOKENS) - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_precision_file_is_served_in_its_own_dtype(tmp_path: Path, dtype: str) -> None:
    model = original(CASES["qwen2"])
    kind = {"float16": Kind.F16, "bfloat16": Kind.BF16}[dtype]
    checkpoint = written(tmp_path / "m.gguf", CASES["qwen2"], model, kind=kind)
    assert checkpoint.config["dtype"] == dtype
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    with running(checkpoint, dtype) as runner:
        ours = forced_logits(runner, TOKENS)
    assert (ours - expected).abs().mean() < 0.1 * expected.std()
