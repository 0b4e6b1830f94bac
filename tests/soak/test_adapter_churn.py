"""The long form of what is shown in short elsewhere: 1,000 loads, replacements and unloads under 32 streams, on a worker process."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.accept import adapter_churn
from tests.e2e.judge import adapters as judge
from tests.fakes.tiny_models import write_tiny_llama

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("depth", ["0", "1"])
def test_c1_c2_c7_1000_operations_alter_no_stream_and_leave_nothing(tmp_path: Path, depth: str) -> None:
    base = write_tiny_llama(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    kinds = judge.kinds()
    sources = [
        judge.save_random(model, kinds[n], tmp_path / str(n), seed=n, strength=0.7) for n in (0, 1, 3, 4, 7, 9, 11)
    ]
    told = asyncio.run(
        adapter_churn.measure(
            base,
            sources,
            "--kv-memory",
            "64MiB",
            "--max-model-len",
            "256",
            "--depth",
            depth,
            "--check-integrity",
            extent=adapter_churn.Extent(operations=1_000, pairs=0),
        )
    )
    assert told["passed"], told
    assert told["answers_compared"] > 100
