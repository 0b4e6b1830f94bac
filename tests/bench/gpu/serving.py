"""The engine as a worker runs it, scheduler and all, on one thread: requests in, tokens and the times of steps out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.types import OPEN_TENANT, Choice, FinishReason, Sampling, TokenLogprobs, TokenRequest
from tests.bench.gpu.steady import Steady
from worker.engine import Engine
from worker.events import StepOutput
from worker.execution.build import Runner
from worker.plan import Executor, Pending, StepPlan
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler

_STREAM = 1


class Waiting:
    """An executor whose every step is waited for before the next is planned: no overlap."""

    depth = 0

    def __init__(self, executor: Executor):
        self._executor = executor

    def execute(self, plan: StepPlan) -> Pending:
        """See Executor."""
        return self._executor.execute(plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """A step that retired `at` (seconds), of so many positions and tokens."""

    at: float
    computed: int
    sampled: int


@dataclass(kw_only=True, slots=True)
class Answer:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """All answers, in order, and all steps."""

    answers: tuple[Answer, ...]
    steps: tuple[Stepped, ...]
    began: float

    @property
    def tokens(self) -> list[list[int]]:
        """Of each answer."""
        return [answer.tokens for answer in self.answers]

    def decode_step_s(self, rows: int, skip: int = 4) -> float:
        """Seconds of a step that decodes all rows, without the first ones, which compile and record."""
        at = [step.at for step in self.steps if step.computed == step.sampled == rows][skip:]
        return (at[-1] - at[0]) / (len(at) - 1)

    def prefill_s(self, rows: int) -> float:
        """Seconds until every request had its first token."""
        sampled = 0
        for step in self.steps:
            sampled += step.sampled
            if sampled >= rows:
                return step.at - self.began
        raise ValueError("not every request had a token")


class Server:
    """An engine over a runner. One after another may use the same runner."""

    def __init__(self, runner: Runner | Steady, *, overlap: bool, slots: int, step_tokens: int = 8192):
        config = SchedulerConfig(
            max_running=slots,
            step_tokens=step_tokens,
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            model_revision="random",
            eos_token_ids=(),
            max_waiting=4 * slots,
            max_waiting_per_tenant=4 * slots,
            depth=runner.depth if overlap else 0,
        )
        executor = runner if overlap else Waiting(runner)
        self._engine = Engine(Scheduler(config, runner.num_blocks), executor)
        self._number = 0

    def run(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Served:
        """All at once, to their ends. RuntimeError where one ends otherwise than by its length."""
        began, first = time.monotonic(), self._number + 1
        for prompt in prompts:
            self._submit(prompt, sampling)
        answers, steps, ended = [Answer() for _ in prompts], [], 0
        while ended < len(prompts):
            output = self._engine.step()
            if (facts := self._engine.last_step) is not None:
                steps.append(Stepped(at=time.monotonic(), computed=facts.computed, sampled=facts.sampled))
            for _, delta in output.deltas:
                answers[delta.handle - first].tokens += delta.tokens
                answers[delta.handle - first].logprobs += delta.logprobs
            ended += _ended(output)
            if self._engine.stalled and ended < len(prompts):
                raise RuntimeError("the engine has nothing to do, and requests have not ended")
        return Served(answers=tuple(answers), steps=tuple(steps), began=began)

    def _submit(self, prompt: Sequence[int], sampling: Sampling) -> None:
        self._number += 1
        request = TokenRequest(
            seq=self._number,
            request_id=str(self._number),
            tenant=OPEN_TENANT,
            prompt_tokens=tuple(prompt),
            choices=(Choice(handle=self._number, index=0),),
            sampling=sampling,
        )
        _ended(self._engine.submit(_STREAM, request))


def _ended(output: StepOutput) -> int:
    """How many ended."""
    if output.rejected:
        raise RuntimeError(f"a request was rejected: {output.rejected[0][1]}")
    for _, end in output.finished:
        if end.reason is not FinishReason.LENGTH:
            raise RuntimeError(f"a request ended by {end.reason}: {end}")
    return len(output.finished)
