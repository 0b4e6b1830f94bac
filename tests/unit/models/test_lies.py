"""Numbers in config.json that cannot be are refused by name, before anything is made of them."""

import pytest
import torch

from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from worker.execution.build import RunnerConfig, build
from worker.models.errors import ModelError
from worker.models.reading import MAX_LAYERS, integer, number, positive

BEYOND = (2**31, 2**63, 10**30)


@pytest.mark.parametrize("value", [*BEYOND, MAX_LAYERS + 1, 10**9])
def test_more_layers_than_any_model_has_are_refused_by_name(value: int) -> None:
    with pytest.raises(ModelError, match="num_hidden_layers"):
        integer({"num_hidden_layers": value}, "num_hidden_layers")


@pytest.mark.parametrize("value", BEYOND)
def test_a_size_beyond_31_bits_is_refused_by_name(value: int) -> None:
    with pytest.raises(ModelError, match="hidden_size"):
        integer({"hidden_size": value}, "hidden_size")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 10**400])
def test_a_number_that_is_not_finite_is_refused_by_name(value: float) -> None:
    for read in (number, positive):
        with pytest.raises(ModelError, match="factor"):
            read({"factor": value}, "factor")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_a_weight_of_integers_is_refused_by_name(name: str) -> None:
    _, checkpoint = tiny_llama(0, vocab_size=64)
    tensors = {each: checkpoint.tensor(each) for each in checkpoint.names()}
    tensors[name] = tensors[name].to(torch.int32)
    lying = MemoryCheckpoint(checkpoint.config, tensors)
    with pytest.raises(ModelError, match=name):
        build(lying, RunnerConfig(dtype="float32", max_running=2, step_tokens=64, kv_bytes=1 << 20, threads=1))
