"""Runs plans on a device behind the host, one step ahead: while a step runs, the next is planned, staged and sent."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.backend import Backend, Pool, Prepared
from kernels.lora.slots import NONE, AdapterSlots
from kernels.prepare.reference import Batch, chunk_of_token, position_of_token
from kernels.rotary.table import RotaryTable
from worker.execution.device.graphs import GraphKey, Graphs, key_of
from worker.execution.device.queue import DeviceQueue, Receipt
from worker.execution.device.slots import DeviceSlots
from worker.execution.device.staging import Staging
from worker.execution.inputs import batch_adapters
from worker.execution.prompts import PromptScorer, StagedScores
from worker.models.decoder import Decoder
from worker.plan import Pending, StepPlan, StepResult
from worker.sampling.sampler import Sampler, StagedSamples
from worker.sampling.sending import Send, whole

_Ints = npt.NDArray[np.int64]
_Compute = Callable[[], list[torch.Tensor]]


class DeviceRunner:
    """A `worker.plan.Executor` of depth 1. `execute` works on the host alone and hands the rest to `queue`; only a pending's `result`
    waits. `graphs` None: every step is launched operator by operator.

    The pool's last block belongs to no sequence: rows that fill a recorded step up write there.
    """

    depth = 1

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Backend,
        pool: Pool,
        rotaries: tuple[RotaryTable, ...],
        slots: DeviceSlots,
        sampler: Sampler,
        queue: DeviceQueue,
        graphs: Graphs | None,
        max_model_len: int,
        kv_bytes: int,
        numerics_id: str,
        adapters: AdapterSlots | None = None,
    ):
        self._model, self._ops, self._pool, self._rotaries = model, ops, pool, rotaries
        self._slots, self._sampler, self._queue, self._graphs = slots, sampler, queue, graphs
        self._scorer = PromptScorer(model.logits, slots.tokens, sampler, model.spec.vocab_size)
        self.adapters = adapters
        self.max_model_len = max_model_len
        self.kv_bytes = kv_bytes
        self.numerics_id = numerics_id
        queue.settle()

    @property
    def num_blocks(self) -> int:
        """KV blocks for sequences."""
        return int(self._pool.blocks) - 1

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self._model.spec.vocab_size

    def close(self) -> None:
        """Nothing is held but memory."""

    def execute(self, plan: StepPlan) -> Pending:
        """Start a step."""
        staging = Staging()
        begin = self._stage_begin(plan, staging.send)
        samples = self._sampler.stage(plan.samples, staging.send) if plan.samples else None
        scores = self._scorer.stage(plan, staging.send) if plan.prompts else None
        compute = self._stage_compute(plan, samples, scores, staging.send) if plan.chunks else list

        @torch.inference_mode()
        def work(buffer: torch.Tensor) -> Sequence[torch.Tensor]:
            staging.arrive(buffer)
            begin()
            return compute()

        return _Step(self._queue.submit(staging.data(), work), samples, scores)

    def _stage_begin(self, plan: StepPlan, send: Send) -> Callable[[], None]:
        for start in plan.starts:
            self._sampler.start(start)
        self._slots.write_tables(plan.tables)
        write, bring = self._slots.stage_start(plan.starts, send), self._sampler.stage_starts(send)
        copies = [send(whole(column)) for column in zip(*plan.copies, strict=True)]  # sources, targets

        def begin() -> None:
            write()
            bring()
            if copies:
                self._pool.copy_blocks(*(column() for column in copies))

        return begin

    def _stage_compute(
        self, plan: StepPlan, samples: StagedSamples | None, scores: StagedScores | None, send: Send
    ) -> _Compute:
        logits = self._stage_logits(plan, scores, send)
        put = None
        if samples is not None:
            _, slots, positions = whole(plan.samples).T
            put = self._slots.stage_put(slots, positions, send)

        def compute() -> list[torch.Tensor]:
            of_samples, of_prompts = logits()
            found: list[torch.Tensor] = []
            if samples is not None and put is not None:
                found = samples.run(of_samples[: len(plan.samples)])
                put(found[0])
            return found + of_prompts

        return compute

    def _stage_logits(
        self, plan: StepPlan, scores: StagedScores | None, send: Send
    ) -> Callable[[], tuple[torch.Tensor, list[torch.Tensor]]]:
        """What gives the logits of the samples (at least so many rows), and the scores of the prompts."""
        slots, starts, lengths, adapter = whole(plan.chunks).T.copy()
        key = self._key(plan, starts + lengths)
        batch, at = self._batch(slots, starts, lengths, adapter, key)
        last = np.cumsum(batch.lengths) - 1
        inner = Staging()
        step = self._ops.stage(
            batch, self._pool, self._rotaries, self._model.spec.attentions, key.longest if key else None
        )
        flat, tokens = inner.send(step.flat), inner.send(at)
        wanted = inner.send(last if key else last[whole([row.chunk for row in plan.samples])])
        sent = send(inner.data())

        def hidden(inputs: torch.Tensor) -> tuple[torch.Tensor, Prepared]:
            inner.arrive(inputs)
            prepared = step.arrive(flat())
            taken = self._slots.tokens.view(-1).index_select(0, tokens())
            return self._model.forward(taken, prepared, self._pool), prepared

        def body(inputs: torch.Tensor) -> torch.Tensor:
            states, prepared = hidden(inputs)
            return self._model.logits(states, wanted(), prepared)

        def eager() -> tuple[torch.Tensor, list[torch.Tensor]]:
            states, prepared = hidden(sent())
            logits = self._model.logits(states, wanted(), prepared) if plan.samples else states[:0]
            return logits, scores.run(states, prepared) if scores is not None else []

        graphs = self._graphs
        if key is None or graphs is None:
            return eager
        recorded = key._replace(kind=step.kind)
        return lambda: (graphs.run(recorded, sent(), body), [])

    def _key(self, plan: StepPlan, ends: _Ints) -> GraphKey | None:
        """Recorded are steps in which every chunk is one token that is sampled."""
        decodes = [row.chunk for row in plan.samples] == list(range(len(plan.chunks)))
        if self._graphs is None or plan.prompts or not decodes or len(ends) > self._slots.tables.shape[0]:
            return None
        if any(chunk.length != 1 for chunk in plan.chunks):
            return None
        return key_of(
            len(ends), int(ends.max()), most_rows=len(self._slots.tables), most_longest=self.max_model_len + 1
        )

    def _batch(
        self, slots: _Ints, starts: _Ints, lengths: _Ints, adapter: _Ints, key: GraphKey | None
    ) -> tuple[Batch, _Ints]:
        """The step's chunks, filled up to the recording's rows, and where its tokens lie."""
        more = key.rows - len(slots) if key else 0
        tables = self._slots.tables[slots]
        spare = np.full((more, tables.shape[1]), self.num_blocks, dtype=np.int64)
        batch = Batch(
            starts=np.concatenate((starts, np.zeros(more, dtype=np.int64))),
            lengths=np.concatenate((lengths, np.ones(more, dtype=np.int64))),
            tables=torch.from_numpy(np.concatenate((tables, spare))),
            adapters=batch_adapters(np.concatenate((adapter, np.full(more, NONE))), self.adapters),
        )
        slot_of_chunk = np.concatenate((slots, np.zeros(more, dtype=np.int64)))
        return batch, self._slots.at(slot_of_chunk[chunk_of_token(batch)], position_of_token(batch))


class _Step:
    """A step that may still be running."""

    def __init__(self, receipt: Receipt, samples: StagedSamples | None, scores: StagedScores | None):
        self._receipt, self._samples, self._scores = receipt, samples, scores

    def result(self) -> StepResult:
        """See Pending."""
        arrays = self._receipt.result()
        count = len(arrays) - (self._scores.parts if self._scores is not None else 0)
        prompts = self._scores.read(arrays[count:]) if self._scores is not None else ()
        if self._samples is None:
            return StepResult(tokens=(), logprobs=(), errors=(), prompts=prompts)
        sampled = self._samples.read(arrays[:count])
        return StepResult(
            tokens=sampled.tokens.tolist(), logprobs=sampled.logprobs, errors=sampled.errors, prompts=prompts
        )
