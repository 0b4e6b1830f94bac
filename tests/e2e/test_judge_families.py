"""Every served family gives transformers' logits and greedy tokens, by the compiled ops and the references, however a
request is run: tiny random models in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from shared.hashing import BLOCK_SIZE
from tests.e2e.judge.runs import Outcome, Session, ShortChunks
from tests.fakes.checkpoint import MemoryCheckpoint
from tests.fakes.families import ORIGINAL, WINDOW, Variant, variants
from tests.fakes.forced import forced_logits
from tests.fakes.tiny_models import tiny_tokenizer
from worker.execution.build import ModelRunner, RunnerConfig, build
from worker.sources.open import open_checkpoint

LENGTH = ORIGINAL  # what scaled rotary tables that depend on the served length are exact for
CONFIG = RunnerConfig(
    dtype="float32", max_running=8, step_tokens=512, max_model_len=LENGTH, kv_bytes=32 << 20, threads=2, depth=0
)
LENGTHS = (1, 17, 40, 90)
TOKENS = 16
TOLERANCE = 1e-4
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference"])

Prompts = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A variant's model as transformers runs it, and as a checkpoint."""

    variant: Variant
    model: PreTrainedModel
    checkpoint: MemoryCheckpoint

    def runner(self, **changes: object) -> ModelRunner:
        runner = build(self.checkpoint, replace(CONFIG, **changes))
        runner._pool.fill(torch.nan)
        return runner

    @torch.inference_mode()
    def judged(self, tokens: Sequence[int]) -> torch.Tensor:
        """The judge's logits at every position."""
        return torch.as_tensor(self.model(input_ids=torch.tensor([list(tokens)])).logits[0])

    def agrees(self, prompts: Prompts, outcomes: Sequence[Outcome]) -> None:
        """At every position our token is the judge's first choice, given what stands before."""
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            assert len(outcome.tokens) == TOKENS
            judged = self.judged([*prompt, *outcome.tokens])[len(prompt) - 1 : -1]
            assert list(outcome.tokens) == judged.argmax(-1).tolist()


def firsts() -> tuple[Variant, ...]:
    """One variant a model type."""
    return tuple({variant.model_type: variant for variant in reversed(variants())}.values())


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a variant is run."""

    variant: Variant
    backend: str
    depth: int

    def __str__(self) -> str:
        return f"{self.variant.name}-{self.backend}-depth{self.depth}"


def cases() -> list[Case]:
    """All variants by the compiled ops; at depth 1, and by the references, the first of each family stands for all."""
    others = [Case(variant=v, backend=b, depth=d) for v in firsts() for b, d in (("cpu", 1), ("reference", 0))]
    return [Case(variant=v, backend="cpu", depth=0) for v in variants()] + others


@dataclass(frozen=True, kw_only=True)
class Run:
    """A case's model and runner."""

    tiny: Tiny
    runner: ModelRunner


@pytest.fixture(scope="module", params=cases(), ids=str)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    case = request.param
    tiny = made(case.variant)
    runner = tiny.runner(backend=case.backend, depth=case.depth)
    yield Run(tiny=tiny, runner=runner)
    runner.close()


def drawn(length: int) -> list[int]:
    return torch.randint(3, 199, (length,), generator=torch.Generator().manual_seed(1)).tolist()


def prompts() -> Prompts:
    draw = torch.Generator().manual_seed(7)
    return [torch.randint(3, 199, (length,), generator=draw).tolist() for length in LENGTHS]


def session(runner: ModelRunner, **changes: object) -> Session:
    fields = {"max_running": CONFIG.max_running, "step_tokens": CONFIG.step_tokens, "max_model_len": LENGTH}
    return Session(runner, **{**fields, **changes})


def test_prompts_outgrow_the_window_and_stay_within_the_original_length() -> None:
    assert sum(length + TOKENS > WINDOW for length in LENGTHS) >= 3
    assert LENGTHS[-1] + TOKENS <= ORIGINAL


@BACKENDS
@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.name)
def test_teacher_forced_logits_are_the_judges_and_chunks_do_not_change_a_bit(variant: Variant, backend: str) -> None:
    tiny, tokens = made(variant), drawn(LENGTH)
    runner, judged = tiny.runner(backend=backend), tiny.judged(tokens)
    ours = forced_logits(runner, tokens)
    assert (ours - judged).abs().max() < TOLERANCE
    assert judged.std() > 0.5
    runner._pool.fill(torch.nan)
    assert torch.equal(forced_logits(runner, tokens, 7), ours)


def test_alone_the_tokens_are_the_judges(run: Run) -> None:
    tiny, runner = run.tiny, run.runner
    one = session(runner, max_running=1, prefix_cache=False)
    tiny.agrees(prompts(), [one.run([prompt], TOKENS)[0] for prompt in prompts()])


def test_in_a_batch_and_again_from_cached_prefixes_the_tokens_are_the_judges(run: Run) -> None:
    tiny, runner = run.tiny, run.runner
    both = session(runner)
    tiny.agrees(prompts(), both.run(prompts(), TOKENS))
    warm = both.run(prompts(), TOKENS)
    tiny.agrees(prompts(), warm)
    whole_blocks = [(length - 1) // BLOCK_SIZE * BLOCK_SIZE for length in LENGTHS]
    assert [outcome.finished.cached_tokens for outcome in warm] == whole_blocks


def test_in_chunks_of_seven_the_tokens_are_the_judges(run: Run) -> None:
    tiny, runner = run.tiny, run.runner
    chunked = session(runner, executor=ShortChunks(runner, 7), prefix_cache=False)
    tiny.agrees(prompts(), chunked.run(prompts(), TOKENS))


def test_after_preemption_the_tokens_are_the_judges(run: Run) -> None:
    """All prompts fit, but not what follows them."""
    tiny, runner = run.tiny, run.runner
    equal = [drawn(90)[start : start + 47] for start in range(CONFIG.max_running)]
    outcomes = session(runner, blocks=3 * len(equal) + 2, prefix_cache=False).run(equal, TOKENS)
    tiny.agrees(equal, outcomes)
    assert sum(outcome.finished.preemptions for outcome in outcomes) > 0


@pytest.mark.parametrize("name", ["llama-longrope", "phi4-mini"])
def test_beyond_the_original_length_longrope_turns_every_position_by_the_long_factors(name: str) -> None:
    """As transformers does for a sequence that is longer when it is first seen."""
    tiny = named(name)
    tokens = drawn(ORIGINAL + 60)
    ours = forced_logits(tiny.runner(max_model_len=2 * ORIGINAL), tokens)
    assert (ours - tiny.judged(tokens)).abs().max() < TOLERANCE
    assert (ours[:100] - tiny.judged(tokens[:100])).abs().max() > 100 * TOLERANCE


def test_beyond_the_models_length_the_dynamic_base_is_that_of_the_longest_served_sequence() -> None:
    tiny = named("llama-dynamic", max_position_embeddings=64)
    tokens = drawn(150)
    ours = forced_logits(tiny.runner(max_model_len=150), tokens)
    assert (ours - tiny.judged(tokens)).abs().max() < TOLERANCE
    assert (ours - forced_logits(tiny.runner(max_model_len=200), tokens)).abs().max() > 100 * TOLERANCE


def test_workers_whose_rotary_tables_differ_by_the_served_length_have_different_numerics_ids() -> None:
    stretched, plain = named("phi4-mini"), named("phi3")
    lengths = (ORIGINAL // 2, ORIGINAL, 2 * ORIGINAL, 3 * ORIGINAL)
    ids = [stretched.runner(max_model_len=length).numerics_id for length in lengths]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert len({plain.runner(max_model_len=length).numerics_id for length in lengths}) == 1


@BACKENDS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", firsts(), ids=lambda variant: variant.name)
def test_half_precision_errs_as_transformers_does_and_chunks_do_not_change_a_bit(
    variant: Variant, dtype: str, backend: str
) -> None:
    """Both against transformers in float32 on the same rounded weights."""
    tiny, tokens = named(variant.name), drawn(LENGTH)
    runner = tiny.runner(dtype=dtype, backend=backend)
    ours = forced_logits(runner, tokens)
    half = tiny.model.to(getattr(torch, dtype)) and tiny.judged(tokens).float()
    exact = tiny.model.float() and tiny.judged(tokens)
    assert (ours - exact).abs().mean() < 2 * (half - exact).abs().mean()
    assert torch.equal(forced_logits(runner, tokens, 7), ours)


@pytest.mark.parametrize("variant", firsts(), ids=lambda variant: variant.name)
def test_a_directory_that_transformers_wrote_gives_the_same_bits(variant: Variant, tmp_path: Path) -> None:
    """By the names and the configuration that it writes to files, which are not always those of its memory."""
    tiny, tokens = made(variant), drawn(LENGTH)
    tiny.model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().write_to(tmp_path / "model")
    stored = open_checkpoint(str(tmp_path / "model"), cache=tmp_path / "cache").checkpoint
    ours = forced_logits(build(stored, CONFIG), tokens)
    assert torch.equal(ours, forced_logits(tiny.runner(), tokens))


def named(name: str, **changes: object) -> Tiny:
    """The variant of that name, its configuration changed."""
    variant = next(variant for variant in variants() if variant.name == name)
    return made(replace(variant, changes={**variant.changes, **changes}))


def made(variant: Variant) -> Tiny:
    model, checkpoint = variant.make()
    return Tiny(variant=variant, model=model, checkpoint=checkpoint)
