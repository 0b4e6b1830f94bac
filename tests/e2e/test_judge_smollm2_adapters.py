"""Adapters on the demo model's own weights, in float32: however they are run, the tokens are those of transformers with each adapter merged
by peft. OCTAVO_JUDGE=full takes all twelve; by default four stand for them: the lowest rank, all projections with patterns, embedding and
head as well, the highest rank.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from kernels.lora.weights import LoraWeights
from shared.hashing import BLOCK_SIZE
from tests.e2e.judge import adapters as judge
from tests.e2e.judge.runs import Outcome, Session
from tests.e2e.judge.verdict import disagreements
from worker.adapters.modules import base_model
from worker.adapters.peft import read
from worker.execution.build import ModelRunner, RunnerConfig, build
from worker.sources.cache import cache_directory
from worker.sources.open import open_checkpoint

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]

FULL = os.environ.get("OCTAVO_JUDGE") == "full"
SOME = (0, 5, 10, 11)
TOKENS, PROMPT, MAX_RANK = 12, 42, 64
BASE = b""
TEXT = (
    "Dear team, the harbour office closes at noon on Friday. Please move the three boats at the north pier before then, tell the crane "
    "driver which of them goes first, and send me the list of keys that are still missing from the board in the hall."
)
OTHERS = (
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n",
    "A loom weaves seventeen yards of cloth in an hour. How many hours does it need for",
)
CONFIG = RunnerConfig(
    dtype="float32",
    max_running=16,
    step_tokens=768,
    max_model_len=128,
    kv_bytes=128 << 20,
    threads=2,
    adapter_slots=12,
    max_adapter_rank=MAX_RANK,
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The runner, adapters by digest with where each was saved, prompts, and all that was answered so far."""

    model: PreTrainedModel
    runner: ModelRunner
    adapters: dict[bytes, LoraWeights]
    saved: dict[bytes, Path]
    prompts: tuple[tuple[int, ...], ...]
    answers: dict[tuple[bytes, int], set[tuple[int, ...]]] = field(default_factory=dict)

    def session(self, **changes: object) -> Session:
        fields = {"max_running": CONFIG.max_running, "step_tokens": CONFIG.step_tokens, "max_model_len": 128}
        return Session(self.runner, adapters=self.adapters, **{**fields, **changes})

    def run(self, session: Session, requests: Sequence[tuple[bytes, int]]) -> list[Outcome]:
        """Prompts by their numbers. What they gave is kept for the judge."""
        outcomes = session.run([self.prompts[n] for _, n in requests], TOKENS, [digest for digest, _ in requests])
        for request, outcome in zip(requests, outcomes, strict=True):
            assert len(outcome.tokens) == TOKENS
            self.answers.setdefault(request, set()).add(outcome.tokens)
        return outcomes

    def mixed(self) -> list[tuple[bytes, int]]:
        """Each adapter and the base model for one prompt, so that prefixes are shared but for the adapter; and more of the base model."""
        return [(digest, 0) for digest in [*self.adapters, BASE]] + [(BASE, 1), (BASE, 2)]


@pytest.fixture(scope="module")
def bench(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    checkpoint = open_checkpoint(str(demo_model), cache=cache_directory()).checkpoint
    model = AutoModelForCausalLM.from_pretrained(str(demo_model), dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(str(demo_model))
    runner = build(checkpoint, CONFIG)
    folder, base = tmp_path_factory.mktemp("adapters"), base_model(checkpoint, runner.adapters.shapes, max_rank=64)
    adapters, saved = {}, {}
    for number, kind in enumerate(judge.kinds()):
        if FULL or number in SOME:
            path = judge.save_random(model, kind, folder / str(number), seed=number, strength=0.3)
            loaded = read(path, base, 1 << 30)
            adapters[loaded.digest], saved[loaded.digest] = loaded.weights, path
    texts = (tokenizer.encode(TEXT)[:PROMPT], *map(tokenizer.encode, OTHERS))
    yield Bench(model=model, runner=runner, adapters=adapters, saved=saved, prompts=tuple(map(tuple, texts)))
    runner.close()


def test_alone_each_answers_otherwise_than_the_base_model(bench: Bench) -> None:
    session = bench.session(max_running=1, prefix_cache=False)
    answers = {digest: bench.run(session, [(digest, 0)])[0].tokens for digest in [*bench.adapters, BASE]}
    assert len(bench.prompts[0]) == PROMPT
    assert len(bench.adapters) == (12 if FULL else len(SOME))
    assert sum(answer == answers[BASE] for answer in answers.values()) == 1


def test_all_mixed_with_the_base_model_and_again_from_cached_prefixes_nothing_changes(bench: Bench) -> None:
    session, requests = bench.session(), bench.mixed()
    cold, warm = bench.run(session, requests), bench.run(session, requests)
    whole = [(len(bench.prompts[n]) - 1) // BLOCK_SIZE * BLOCK_SIZE for _, n in requests]
    assert [outcome.finished.cached_tokens for outcome in cold] == [0] * len(requests)
    assert [outcome.finished.cached_tokens for outcome in warm] == whole


def test_preempted_they_go_on(bench: Bench) -> None:
    """All prompts fit, but not what follows them."""
    requests = bench.mixed()
    outcomes = bench.run(bench.session(blocks=3 * len(requests) + 2), requests)
    assert sum(outcome.finished.preemptions for outcome in outcomes) > 0


def test_each_adapter_always_gave_one_answer_and_it_is_the_judges(bench: Bench) -> None:
    if set(bench.answers) != set(bench.mixed()):
        pytest.skip("needs the answers of the tests before it")
    assert [len(answers) for answers in bench.answers.values()] == [1] * len(bench.answers)
    wrong = {}
    for digest in [*bench.adapters, BASE]:
        merged = judge.merged(bench.model, bench.saved[digest]) if digest else bench.model
        for (own, number), (answer,) in bench.answers.items():
            if own == digest:
                found = disagreements(merged, bench.prompts[number], answer)
                wrong |= {(digest, number): found} if any(not one.is_tie for one in found) else {}
    assert not wrong
