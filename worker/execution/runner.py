"""Runs plans on one model, in order: the engine's executor."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from kernels.backend import Backend, Pool, Prepared
from kernels.lora.slots import AdapterSlots
from kernels.rotary.table import RotaryTable
from worker.execution.inputs import step_inputs
from worker.execution.prompts import PromptAnswer, PromptScorer
from worker.execution.state import SlotState
from worker.models.decoder import Decoder
from worker.plan import Pending, StepPlan, StepResult
from worker.sampling.sampler import Sampler
from worker.sampling.sending import at_once

_NOTHING = StepResult(tokens=(), logprobs=(), errors=())


class ModelRunner:
    """A `worker.plan.Executor`. At depth 0 a step runs inside `execute`; at depth 1 on a thread of the runner's, in
    order. `adapters` are the slots that chunks name; whoever loads adapters fills them.
    """

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Backend,
        pool: Pool,
        rotaries: tuple[RotaryTable, ...],
        slots: SlotState,
        sampler: Sampler,
        max_model_len: int,
        kv_bytes: int,
        numerics_id: str,
        depth: int,
        adapters: AdapterSlots | None = None,
    ):
        self._model, self._ops, self._pool, self._rotaries = model, ops, pool, rotaries
        self._slots, self._sampler = slots, sampler
        self._scorer = PromptScorer(model.logits, slots.tokens, sampler, model.spec.vocab_size)
        self._worker = ThreadPoolExecutor(1, "octavo-step") if depth else None
        self.adapters = adapters
        self.max_model_len = max_model_len
        self.kv_bytes = kv_bytes
        self.numerics_id = numerics_id

    @property
    def depth(self) -> int:
        """Steps that may be in flight when the next is planned."""
        return 1 if self._worker else 0

    @property
    def num_blocks(self) -> int:
        """KV blocks."""
        return int(self._pool.blocks)

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self._model.spec.vocab_size

    def execute(self, plan: StepPlan) -> Pending:
        """Start a step. What makes it fail is raised by the pending's `result`."""
        if self._worker:
            return self._worker.submit(self._run, plan)
        return _at_once(lambda: self._run(plan))

    def close(self) -> None:
        """Wait for what runs and end the thread."""
        if self._worker:
            self._worker.shutdown()

    def _run(self, plan: StepPlan) -> StepResult:
        torch.set_num_threads(self._ops.library_threads)  # counts for the calling thread alone
        with torch.inference_mode():
            self._begin(plan)
            return self._compute(plan) if plan.chunks else _NOTHING

    def _begin(self, plan: StepPlan) -> None:
        self._slots.start(plan.starts)
        for start in plan.starts:
            self._sampler.start(start)
        self._slots.write_tables(plan.tables)
        if plan.copies:
            self._pool.copy_blocks([copy.source for copy in plan.copies], [copy.target for copy in plan.copies])

    def _compute(self, plan: StepPlan) -> StepResult:
        inputs = step_inputs(plan, self._slots, self.adapters)
        step = self._ops.prepare(inputs.batch, self._pool, self._rotaries, self._model.spec.attentions)
        hidden = self._model.forward(inputs.tokens, step, self._pool)
        result = self._sample(plan, self._model.logits(hidden, inputs.rows, step)) if plan.samples else _NOTHING
        return replace(result, prompts=self._score(plan, hidden, step)) if plan.prompts else result

    def _score(self, plan: StepPlan, hidden: torch.Tensor, step: Prepared) -> list[PromptAnswer]:
        staged = self._scorer.stage(plan, at_once)
        return staged.read([tensor.numpy() for tensor in staged.run(hidden, step)])

    def _sample(self, plan: StepPlan, logits: torch.Tensor) -> StepResult:
        sampled = self._sampler.sample(logits, plan.samples)
        self._slots.put([row.slot for row in plan.samples], [row.position for row in plan.samples], sampled.tokens)
        return StepResult(tokens=sampled.tokens.tolist(), logprobs=sampled.logprobs, errors=sampled.errors)


def _at_once(run: Callable[[], StepResult]) -> Pending:
    done: Future[StepResult] = Future()
    try:
        done.set_result(run())
    except Exception as error:  # noqa: BLE001 (the future carries it to whoever asks for the result)
        done.set_exception(error)
    return done
