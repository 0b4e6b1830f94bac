"""The sampler of a device behind the host, with Triton's kernels in the interpreter, against the sampler of the CPU: equal logits give
equal tokens whatever a request asks for.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kernels.backend import Backend, backend
from shared.types import Sampling, TokenLogprobs
from tests.fakes.watch import Unseen
from tests.integration.test_sampling_options import MIXED, PLAIN, VOCABULARY
from worker.execution.device.staging import Staging
from worker.plan import SampleRow, SlotStart
from worker.sampling.sampler import Sampled, Sampler
from worker.sampling.sending import at_once
from worker.sampling.state import SamplingState

SLOTS, LENGTH, EOS = 16, 56, (2, 9)
ENDINGS = replace(PLAIN, temperature=1.0, seed=9, bad_words=((7, 7, 8), (8,), (7, 8), (0, 7, 8), (*[7] * 31, 3)))
KINDS = {
    **MIXED,
    "endings": ENDINGS,
    "top-k and all penalties": replace(MIXED["frequency"], top_k=5, presence_penalty=-1.0, repetition_penalty=0.7),
    "all logprobs": replace(PLAIN, temperature=1.3, seed=3, logprobs=20),
}


class Twin:
    """A sampler, its slots' tokens, and one step after another of all slots."""

    def __init__(self, ops: Backend):
        self.tokens = torch.full((SLOTS, LENGTH), 77)
        self.sampler = Sampler(
            ops, state=SamplingState(SLOTS), tokens=self.tokens, vocab_size=VOCABULARY, eos_token_ids=EOS, looks=False
        )
        self.behind = ops.logit_kernels is not None
        self.ends = [0] * SLOTS

    def start(self, slot: int, known: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        self.tokens[slot, : len(known)] = torch.tensor(known)
        self.ends[slot] = len(known)
        self.sampler.start(
            SlotStart(slot=slot, tokens=known, prompt_len=prompt_len, sampling=sampling, choice_index=slot % 3)
        )

    def step(self, slots: Sequence[int], logits: torch.Tensor) -> Sampled:
        rows = [SampleRow(i, slot, self.ends[slot]) for i, slot in enumerate(slots)]
        sampled = self._behind(rows, logits) if self.behind else self.sampler.sample(logits, rows)
        for slot, token in zip(slots, sampled.tokens.tolist(), strict=True):
            self.tokens[slot, self.ends[slot]] = token
            self.ends[slot] += 1
        return sampled

    def _behind(self, rows: Sequence[SampleRow], logits: torch.Tensor) -> Sampled:
        """As DeviceRunner does it: staged, sent once, computed without a look, fetched."""
        staging = Staging()
        staged = self.sampler.stage(rows, staging.send)
        data = staging.data()
        buffer = torch.from_numpy(data)
        with Unseen() as unseen, unseen.kernels():
            staging.arrive(buffer)
            found = staged.run(logits)
        return staged.read([tensor.numpy() for tensor in found])


def assert_close(got: list[TokenLogprobs | None], want: list[TokenLogprobs | None]) -> None:
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert abs(one.sampled - other.sampled) < 1e-5
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert all(abs(a - b) < 1e-5 for (_, a), (_, b) in zip(one.top, other.top, strict=True))


def random_logits(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def test_all_options_give_the_tokens_of_the_cpus_sampler_step_after_step() -> None:
    """All kinds at once and some at a time; sequences end, and others take their slots with outputs that they bring."""
    twins = [Twin(backend("triton")), Twin(backend("reference"))]
    kinds = list(KINDS.values())
    for slot in range(SLOTS - 2):
        known = [7, 8, 7, slot, *[7] * (slot * 3), *range(slot)][:34] if slot != 10 else [1] * 4 + [7] * 33
        for twin in twins:
            twin.start(slot, known, 4, kinds[slot % len(kinds)])
    for number in range(8):
        if number == 4:
            for slot in (2, 9, 15):
                for twin in twins:
                    twin.start(slot, [5, 7, 7, 8, slot], 2, kinds[(slot + 5) % len(kinds)])
        slots = [slot for slot in range(SLOTS - 2) if number < 2 or (slot + number) % 3]
        logits = random_logits(len(slots), number)
        got, want = (twin.step(slots, logits.clone()) for twin in twins)
        assert got.tokens.tolist() == want.tokens.tolist()
        assert got.errors == want.errors == [None] * len(slots)
        assert_close(got.logprobs, want.logprobs)


@pytest.mark.parametrize("name", KINDS)
def test_changed_logits_have_the_bits_of_the_cpus(name: str) -> None:
    """Before temperature, row for row, and -inf where a token is forbidden."""
    logits, changed = random_logits(3, 5), []
    for ops in (backend("triton", deterministic=True), backend("reference")):
        twin = Twin(ops)
        for slot in range(3):
            twin.start(slot, [3, 7, 7, 60, 61, 7][: 3 + slot], 2, KINDS[name])
        rows = [SampleRow(i, i, twin.ends[i]) for i in range(3)]
        changes = twin.sampler.stage_changes(rows, at_once)
        changed.append(twin.sampler.changed(logits, changes) if changes else logits)
    assert torch.equal(*changed)


def test_a_row_that_cannot_be_sampled_fails_alone_and_by_name() -> None:
    twins = [Twin(backend("triton")), Twin(backend("reference"))]
    stuck = replace(PLAIN, allowed_token_ids=(5,), bad_words=((5,),), logprobs=2)
    logits = random_logits(4, 2)
    logits[1, 30] = torch.nan
    results = []
    for twin in twins:
        for slot, sampling in enumerate((MIXED["everything"], PLAIN, stuck, MIXED["presence"])):
            twin.start(slot, [7, 8, slot], 2, sampling)
        results.append(twin.step(range(4), logits.clone()))
    got, want = results
    assert got.errors == want.errors
    assert [error is None for error in got.errors] == [True, False, False, True]
    assert [got.tokens[i] for i in (0, 3)] == [want.tokens[i] for i in (0, 3)]
    assert_close(got.logprobs, want.logprobs)
