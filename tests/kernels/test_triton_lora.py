"""Shrink and expand of many adapters in one batch, in the interpreter, against a loop in float64."""

import numpy as np
import pytest
import torch

from tests.kernels.pairwise import covering
from tests.kernels.triton_cases import DTYPES, assert_close, drawn, launcher

from kernels.lora.triton import LoraStack, LoraStep, apply, apply_embedding, jobs  # isort: skip (after the interpreter)

BATCHES = {
    "mixed": [2, -1, 0, 2, 2, -1, 1],
    "none": [-1, -1],
    "one": [3],
    "many": [0] * 40 + [3] * 70 + [-1] * 3 + [2],
    "empty slot's neighbours": [1, 3],
}
FACTORS = {
    "batch": tuple(BATCHES),
    "rows": ((100,), (48, 16, 16), (70, 70)),
    "k": (64, 200),
    "ranks": ((8, 8, 8, 8), (1, 16, 5, 0), (64, 8, 3, 16)),
    "dtype": DTYPES,
}


def step_of(slots: list[int]) -> LoraStep:
    order, made, rows = jobs(np.array(slots, dtype=np.int64))
    own = np.array(slots, dtype=np.int32)[order]
    return LoraStep(order=torch.from_numpy(order), slots=torch.from_numpy(own), jobs=torch.from_numpy(made), rows=rows)


@pytest.mark.parametrize(",".join(FACTORS), covering(FACTORS))
def test_each_row_gets_what_its_own_adapter_adds(batch, rows, k, ranks, dtype) -> None:
    slots, count = BATCHES[batch], len(BATCHES[batch])
    stack = LoraStack.empty(rows, k, slots=4, max_rank=max(ranks), dtype=dtype, device=torch.device("cpu"))
    stack.a.fill_(torch.nan)
    stack.b.fill_(torch.nan)
    x = drawn(count, k + 2).to(dtype)[:, 1:-1]
    out = drawn(count, sum(rows) + 4, seed=1).to(dtype)[:, 2:-2]
    want = out.double()
    for slot, rank in enumerate(ranks):
        own = [token for token, named in enumerate(slots) if named == slot]
        for module, size in enumerate(rows):
            if rank == 0 or (slot, module) == (1, 1):  # an adapter that leaves a module alone
                continue
            a = (drawn(rank, k, seed=10 * slot + module) / k**0.5).to(dtype)
            b = drawn(size, rank, seed=100 + 10 * slot + module).to(dtype)
            stack.put(slot, module, a, b, 0.5)
            low = sum(rows[:module])
            want[own, low : low + size] += 0.5 * (x[own].double() @ a.double().T) @ b.double().T
    apply(launcher(), x, stack, step_of(slots), out)
    assert_close(out, want, dtype, factor=4)
    alone = [token for token, slot in enumerate(slots) if slot < 0]
    assert torch.equal(out[alone].double(), want[alone])


def test_a_cleared_slot_adds_nothing() -> None:
    stack = LoraStack.empty((32,), 64, slots=2, max_rank=8, dtype=torch.float32, device=torch.device("cpu"))
    stack.put(1, 0, drawn(8, 64), drawn(32, 8), 1.0)
    stack.clear(1)
    out = torch.zeros(2, 32)
    apply(launcher(), drawn(2, 64), stack, step_of([1, 0]), out)
    assert not out.any()


def test_an_adapted_embedding_adds_the_tokens_columns() -> None:
    slots, tokens = [1, -1, 0, 1], torch.tensor([3, 3, 9, 0])
    stack = LoraStack.empty(
        (20,), 10, slots=2, max_rank=4, dtype=torch.float32, device=torch.device("cpu"), by_token=True
    )
    want = torch.zeros(4, 20)
    for slot, rank in ((0, 4), (1, 3)):
        a, b = drawn(rank, 10, seed=slot), drawn(20, rank, seed=slot + 5)
        stack.put(slot, 0, a.T, b, 0.5)
        for token in (i for i, named in enumerate(slots) if named == slot):
            want[token] = 3.0 * 0.5 * b @ a[:, tokens[token]]
    out = torch.zeros(4, 20)
    apply_embedding(launcher(), tokens, stack, step_of(slots), out, 3.0)
    assert_close(out, want, torch.float32)


def test_jobs_hold_each_adapted_token_once_and_one_slot_each() -> None:
    slots = np.array(BATCHES["many"] + BATCHES["mixed"])
    order, made, rows = jobs(slots)
    assert sorted(order.tolist()) == np.flatnonzero(slots >= 0).tolist()
    covered = [place for _, first, count in made.tolist() for place in range(first, first + count)]
    assert sorted(covered) == list(range(len(order)))
    for slot, first, count in made.tolist():
        assert 0 < count <= rows
        assert (slots[order[first : first + count]] == slot).all()
