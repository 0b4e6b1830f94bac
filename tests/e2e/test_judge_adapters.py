"""Twelve adapters and the base model in one batch give the tokens of transformers with each adapter merged by peft, however they are run:
tiny models of three families in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import PreTrainedModel

from kernels.lora.weights import LoraWeights
from shared.hashing import BLOCK_SIZE
from tests.e2e.judge import adapters as judge
from tests.e2e.judge.runs import Outcome, Session, ShortChunks
from tests.fakes.families import variants
from worker.adapters.modules import base_model
from worker.adapters.peft import read
from worker.execution.build import ModelRunner, RunnerConfig, build

TOKENS, PROMPT, MAX_RANK, SLOTS = 12, 42, 64, 12
CONFIG = RunnerConfig(
    dtype="float32",
    max_running=16,
    step_tokens=512,
    max_model_len=128,
    kv_bytes=32 << 20,
    threads=2,
    adapter_slots=SLOTS,
    max_adapter_rank=MAX_RANK,
)
CASES = [  # heads tied and untied, odd sizes, biases, norms after, caps, scaled embeddings, stacked projections
    ("qwen2", "cpu"),
    ("qwen2", "reference"),
    ("gemma2-caps", "cpu"),
    ("phi4-mini", "cpu"),
]
BASE = b""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A model with its runner; adapters by digest, and what transformers makes of each."""

    runner: ModelRunner
    adapters: dict[bytes, LoraWeights]
    merged: dict[bytes, PreTrainedModel]

    @torch.inference_mode()
    def agrees(self, digest: bytes, prompt: Sequence[int], outcome: Outcome) -> None:
        """At every position our token is the judge's first choice, given what stands before."""
        assert len(outcome.tokens) == TOKENS
        tokens = torch.tensor([[*prompt, *outcome.tokens]])
        judged = self.merged[digest](input_ids=tokens).logits[0, len(prompt) - 1 : -1]
        assert list(outcome.tokens) == judged.argmax(-1).tolist()

    def session(self, **changes: object) -> Session:
        fields = {"max_running": CONFIG.max_running, "step_tokens": CONFIG.step_tokens, "max_model_len": 128}
        return Session(self.runner, adapters=self.adapters, **{**fields, **changes})


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    name, backend = request.param
    variant = next(v for v in variants() if v.name == name)
    model, checkpoint = variant.make()
    runner = build(checkpoint, replace(CONFIG, backend=backend))
    runner._pool.fill(torch.nan)
    folder, base = tmp_path_factory.mktemp(name), base_model(checkpoint, runner.adapters.shapes, max_rank=MAX_RANK)
    adapters, merged = {}, {BASE: model}
    for number, kind in enumerate(judge.kinds()):
        own = judge.fused(kind) if name.startswith("phi") else kind
        path = judge.save_random(model, own, folder / str(number), seed=number, strength=0.7)
        loaded = read(path, base, 64 << 20)
        adapters[loaded.digest], merged[loaded.digest] = loaded.weights, judge.merged(model, path)
    yield Bench(runner=runner, adapters=adapters, merged=merged)
    runner.close()


def prompt(seed: int) -> list[int]:
    return torch.randint(3, 199, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()


def mixed(bench: Bench) -> list[tuple[bytes, list[int]]]:
    """Each adapter and the base model for one prompt, so that prefixes are shared but for the adapter; and more of the base model."""
    return [(digest, prompt(0)) for digest in [*bench.adapters, BASE]] + [(BASE, prompt(1)), (BASE, prompt(2))]


def run(bench: Bench, session: Session, requests: Sequence[tuple[bytes, list[int]]]) -> list[Outcome]:
    digests, prompts = [digest for digest, _ in requests], [tokens for _, tokens in requests]
    outcomes = session.run(prompts, TOKENS, digests)
    for digest, tokens, outcome in zip(digests, prompts, outcomes, strict=True):
        bench.agrees(digest, tokens, outcome)
    return outcomes


def test_alone_each_gives_the_judges_tokens_and_they_differ_from_the_base_models(bench: Bench) -> None:
    session = bench.session(max_running=1, prefix_cache=False)
    answers = {digest: run(bench, session, [(digest, prompt(0))])[0].tokens for digest in [*bench.adapters, BASE]}
    assert len(bench.adapters) == 12
    assert sum(answer == answers[BASE] for answer in answers.values()) == 1


def test_all_mixed_in_one_batch_and_again_from_cached_prefixes_give_the_judges_tokens(bench: Bench) -> None:
    session, requests = bench.session(), mixed(bench)
    cold = run(bench, session, requests)
    assert [outcome.finished.cached_tokens for outcome in cold] == [0] * len(requests)
    warm = run(bench, session, requests)
    whole = (PROMPT - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert [outcome.finished.cached_tokens for outcome in warm] == [whole] * len(requests)
    assert [outcome.tokens for outcome in warm] == [outcome.tokens for outcome in cold]


def test_in_chunks_of_seven_they_give_the_judges_tokens(bench: Bench) -> None:
    run(bench, bench.session(executor=ShortChunks(bench.runner, 7), prefix_cache=False), mixed(bench))


def test_preempted_they_give_the_judges_tokens(bench: Bench) -> None:
    """All prompts fit, but not what follows them."""
    requests = mixed(bench)
    outcomes = run(bench, bench.session(blocks=3 * len(requests) + 2), requests)
    assert sum(outcome.finished.preemptions for outcome in outcomes) > 0


def test_with_four_slots_for_twelve_adapters_they_give_the_judges_tokens(bench: Bench) -> None:
    run(bench, bench.session(max_adapters=4), mixed(bench))
