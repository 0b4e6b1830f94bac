"""The demo model's greedy tokens are transformers', however a request is run. float32: exactly; bfloat16: the agreement is told.

OCTAVO_JUDGE=full takes all prompts in every mode, and 64 tokens of each. By default 32 tokens, and a share of the prompts, others at each
depth: every second in a full batch, so that both depths have all of them, every fourth chunked and preempted, every tenth in the two slow
modes. What all prompts share, the kernels in float32, runs at either depth; all families' modes run whole in test_judge_families.py.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from shared.hashing import BLOCK_SIZE
from tests.e2e.judge.prompts import real_prompts
from tests.e2e.judge.runs import Outcome, Session, ShortChunks, make_runner
from tests.e2e.judge.verdict import Judge
from worker.execution.build import ModelRunner
from worker.models.checkpoint import Checkpoint
from worker.sources.cache import cache_directory
from worker.sources.open import open_checkpoint

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]

FULL = os.environ.get("OCTAVO_JUDGE") == "full"
TOKENS = 64 if FULL else 32
FOREVER = 1e9  # seconds: how many are preempted is not to depend on the machine
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def prompts(shared_data: Path, demo_model: Path) -> Prompts:
    return real_prompts(shared_data / "prompts", AutoTokenizer.from_pretrained(str(demo_model)))


@pytest.fixture(scope="module")
def checkpoint(demo_model: Path) -> Checkpoint:
    return open_checkpoint(str(demo_model), cache=cache_directory()).checkpoint


@pytest.fixture(scope="module")
def judge(demo_model: Path) -> Judge:
    return Judge(demo_model, torch.float32)


@pytest.fixture(scope="module", params=[0, 1], ids=["depth0", "depth1"])
def runner(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> ModelRunner:
    return make_runner(checkpoint, depth=request.param)


def _every(number: int, prompts: Prompts, runner: ModelRunner) -> Prompts:
    """All prompts in a full run, else every so many, from the shortest on at depth 0 and from the middle on at depth 1."""
    return prompts if FULL else prompts[runner.depth * number // 2 :: number]


def _assert_agrees(judge: Judge, prompts: Prompts, outcomes: Sequence[Outcome]) -> None:
    """Exact equality. A true tie, which no rule decides, is accepted and told."""
    wrong = []
    for number, (prompt, outcome) in enumerate(zip(prompts, outcomes, strict=True)):
        assert len(outcome.tokens) == TOKENS
        for found in judge.disagreements(prompt, outcome.tokens):
            if found.is_tie:
                warnings.warn(f"prompt {number}: a true tie: {found}", stacklevel=2)
            else:
                wrong.append((number, found))
    assert not wrong


def test_forty_prompts_of_20_to_400_tokens(prompts: Prompts) -> None:
    lengths = [len(prompt) for prompt in prompts]
    assert len({tuple(prompt) for prompt in prompts}) == 40
    assert lengths[0] <= 22
    assert lengths[-1] >= 380


def test_alone_the_tokens_are_the_judges(prompts: Prompts, runner: ModelRunner, judge: Judge) -> None:
    some = _every(10, prompts, runner)
    session = Session(runner, max_running=1, prefix_cache=False)
    _assert_agrees(judge, some, [session.run([prompt], TOKENS)[0] for prompt in some])


def test_in_a_full_batch_and_again_from_cached_prefixes_the_tokens_are_the_judges(
    prompts: Prompts, runner: ModelRunner, judge: Judge
) -> None:
    some = _every(2, prompts, runner)
    session = Session(runner)
    cold = session.run(some, TOKENS)
    warm = session.run(some, TOKENS)
    _assert_agrees(judge, some, cold)
    _assert_agrees(judge, some, warm)
    whole_blocks = [(len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in some]
    assert [outcome.finished.cached_tokens for outcome in warm] == whole_blocks


def test_chunked_by_seven_in_a_full_batch_the_tokens_are_the_judges(
    prompts: Prompts, runner: ModelRunner, judge: Judge
) -> None:
    some = _every(4, prompts, runner)
    session = Session(runner, executor=ShortChunks(runner, 7), prefix_cache=False)
    _assert_agrees(judge, some, session.run(some, TOKENS))


def test_with_steps_of_seven_tokens_the_tokens_are_the_judges(
    prompts: Prompts, runner: ModelRunner, judge: Judge
) -> None:
    some = _every(10, prompts, runner)
    session = Session(runner, step_tokens=7, max_running=7, prefix_cache=False)
    _assert_agrees(judge, some, session.run(some, TOKENS))


def test_after_forced_preemption_the_tokens_are_the_judges(
    prompts: Prompts, runner: ModelRunner, judge: Judge, record_property: Callable[[str, object], None]
) -> None:
    some = _every(4, prompts, runner)[::-1]  # who came last gives way, and frees little where it is short: more follow
    needed = sum(-(-(len(prompt) + TOKENS) // BLOCK_SIZE) for prompt in some)
    session = Session(runner, blocks=needed // 3, prefix_cache=False, target_wait_s=FOREVER, starve_s=FOREVER)
    outcomes = session.run(some, TOKENS)
    _assert_agrees(judge, some, outcomes)
    preempted = [outcome.finished.preemptions for outcome in outcomes]
    record_property("preempted_prompts", sum(count > 0 for count in preempted))
    record_property("preemptions", sum(preempted))
    assert sum(count > 0 for count in preempted) >= len(some) // 5


def test_bfloat16_agreement_is_told(
    prompts: Prompts, checkpoint: Checkpoint, judge: Judge, demo_model: Path, tmp_path: Path
) -> None:
    prompts = prompts if FULL else prompts[::4]
    outcomes = Session(make_runner(checkpoint, dtype="bfloat16")).run(prompts, TOKENS)
    judges = {"float32": judge, "bfloat16": Judge(demo_model, torch.bfloat16)}
    report = {name: _agreement(one, prompts, outcomes) for name, one in judges.items()}
    target = Path(os.environ.get("OCTAVO_REPORTS", tmp_path)) / "judge_bfloat16.json"
    target.write_text(json.dumps(report, indent=2) + "\n")
    sys.stderr.write(f"{target}: {json.dumps(report)}\n")
    assert report["float32"]["agreeing_tokens"] > 0.9
    assert report["bfloat16"]["agreeing_tokens"] > 0.9


def _agreement(judge: Judge, prompts: Prompts, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The share of our tokens that the judge would have chosen, given what stands before each, and the largest gap elsewhere."""
    found = [judge.disagreements(prompt, outcome.tokens) for prompt, outcome in zip(prompts, outcomes, strict=True)]
    total = sum(len(outcome.tokens) for outcome in outcomes)
    gaps = [one.gap for some in found for one in some]
    return {"tokens": total, "agreeing_tokens": 1 - len(gaps) / total, "largest_gap": max(gaps, default=0.0)}
