"""The bound, against figures worked out by hand and those of the peers' workload."""

from pathlib import Path

import pytest
import torch

from octavo.bench import bound, workload
from octavo.bench.bound import Limits, ModelSize, Step
from octavo.bench.model import counted
from octavo.bench.workload import Item
from tests.fakes.checkpoint import tiny_llama

SMOLLM2 = ModelSize(body=106_168_320, head=28_311_552, itemsize=2)


def item(prompt: int, output: int) -> Item:
    return Item(prompt=(7,) * prompt, output_tokens=output)


def test_a_decode_step_holds_each_request_that_still_wants_tokens_after_its_first() -> None:
    assert bound.batches([item(5, 4), item(5, 1), item(5, 2)]) == [2, 1, 1]
    assert bound.batches([item(5, 1)]) == []


def test_a_bound_by_hand() -> None:
    size = ModelSize(body=100, head=10, itemsize=2)  # 220 bytes a step; 220 FLOP a decoded token
    limits = Limits(read=220.0, large=400.0, packed=110.0)
    least = bound.of_workload([item(3, 2), item(5, 3)], size, limits)
    assert least.prefill_s == pytest.approx((2 * 100 * 8 + 2 * 10 * 2) / 400)
    assert least.decode_s == pytest.approx(
        440 / 110 + 220 / 110
    )  # both by arithmetic: 4 s and 2 s against 1 s of reading
    assert (least.decode_steps, least.bound_by_memory) == (2, 0)


def test_memory_sets_the_pace_of_small_batches() -> None:
    size = ModelSize(body=100, head=10, itemsize=2)
    limits = Limits(read=110.0, large=400.0, packed=220.0)
    least = bound.of_workload([item(3, 2), item(5, 3), item(5, 2)], size, limits)
    assert least.decode_s == pytest.approx(
        3.0 + 2.0
    )  # three rows take 3 s of arithmetic; one row waits 2 s for its weights
    assert (least.decode_steps, least.bound_by_memory) == (2, 1)


@pytest.mark.parametrize(("rate", "output_throughput"), [(0.87e12, 1284), (1.6e12, 1945), (2.1e12, 2231)])
def test_the_peers_workload_has_the_bound_that_was_worked_out_for_it(
    shared_data: Path, rate: float, output_throughput: float
) -> None:
    mix = workload.read(shared_data.parent / "peers" / "workload.json")
    least = bound.of_workload(mix.items, SMOLLM2, Limits(read=23e9, large=rate, packed=rate))
    assert 10_164 / least.seconds == pytest.approx(output_throughput, rel=0.005)


def test_one_stream_is_bound_by_reading_the_weights() -> None:
    assert bound.decode_tokens_per_s(SMOLLM2, Limits(read=23e9, large=1.0, packed=1.0)) == pytest.approx(85.5, abs=0.1)


def test_steps_as_cut_take_the_larger_of_memory_and_arithmetic_each() -> None:
    size = ModelSize(body=100, head=10, itemsize=2)
    limits = Limits(read=220.0, large=400.0, packed=110.0)
    steps = [Step(tokens=1, rows=1, seconds=9.0), Step(tokens=8, rows=2, seconds=9.0)]
    assert bound.of_steps(steps, size, limits) == pytest.approx(1.0 + (2 * 100 * 8 + 2 * 10 * 2) / 400)


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_counted_as_they_are_multiplied(tied: bool) -> None:
    model, checkpoint = tiny_llama(tie_word_embeddings=tied)
    linear = [module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear)]
    body, head = counted(checkpoint)
    assert body + head == sum(linear)
    assert head == 199 * 96
