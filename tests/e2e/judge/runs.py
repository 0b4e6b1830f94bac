"""Greedy runs of a list of prompts through the engine, in whatever way the scheduler is told to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.lora.slots import AdapterSlots
from kernels.lora.weights import LoraWeights
from shared.types import OPEN_TENANT, Choice, Finished, Sampling, TokenRequest
from worker.engine.engine import Engine
from worker.execution.build import ModelRunner, RunnerConfig, build
from worker.models.checkpoint import Checkpoint
from worker.plan import Chunk, Executor, Pending, StepPlan
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler

SLOTS, STEP_TOKENS, MODEL_LEN = 40, 2048, 512
KV_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one prompt gave."""

    tokens: tuple[int, ...]
    finished: Finished


def make_runner(
    checkpoint: Checkpoint, *, dtype: Any = "float32", depth: int = 0, adapter_slots: int = 0
) -> ModelRunner:
    config = RunnerConfig(
        dtype=dtype,
        max_running=SLOTS,
        step_tokens=STEP_TOKENS,
        max_model_len=MODEL_LEN,
        kv_bytes=KV_BYTES,
        threads=torch.get_num_threads(),
        depth=depth,
        adapter_slots=adapter_slots,
    )
    return build(checkpoint, config)


class ShortChunks:
    """An executor that computes each chunk of a plan in pieces of at most `size` positions, the last ones of all together."""

    def __init__(self, executor: Executor, size: int):
        self._executor = executor
        self._size = size

    @property
    def depth(self) -> int:
        return self._executor.depth

    def execute(self, plan: StepPlan) -> Pending:
        pieces = [self._pieces(chunk) for chunk in plan.chunks]
        begin = StepPlan(step=plan.step, starts=plan.starts, tables=plan.tables, copies=plan.copies)
        self._executor.execute(begin)
        for behind in range(max(map(len, pieces), default=1) - 1, 0, -1):
            chunks = tuple(piece[-1 - behind] for piece in pieces if len(piece) > behind)
            self._executor.execute(StepPlan(step=plan.step, chunks=chunks))
        last = tuple(piece[-1] for piece in pieces)
        return self._executor.execute(StepPlan(step=plan.step, chunks=last, samples=plan.samples))

    def _pieces(self, chunk: Chunk) -> list[Chunk]:
        end = chunk.start + chunk.length
        return [
            chunk._replace(start=start, length=min(self._size, end - start))
            for start in range(chunk.start, end, self._size)
        ]


class DirectLoader:
    """A `worker.scheduler.adapters.SlotLoader` that has every adapter at hand and fills slots at once."""

    def __init__(self, slots: AdapterSlots, adapters: Mapping[bytes, LoraWeights]):
        self._slots = slots
        self._adapters = adapters
        self._done: list[int] = []

    def install(self, slot: int, digest: bytes) -> None:
        self._slots.install(slot, self._adapters[digest])
        self._done.append(slot)

    def clear(self, slot: int) -> None:
        self._slots.clear(slot)

    def take(self) -> list[int]:
        """Slots that were filled since the last call."""
        done, self._done = self._done, []
        return done


class Session:
    """One engine over a runner; `changes` go into the scheduler's configuration, `blocks` makes its pool smaller. `adapters` are there by
    their digests.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        executor: Executor | None = None,
        blocks: int = 0,
        adapters: Mapping[bytes, LoraWeights] | None = None,
        **changes: Any,
    ):
        fields: dict[str, Any] = {
            "max_running": SLOTS,
            "step_tokens": STEP_TOKENS,
            "max_model_len": MODEL_LEN,
            "vocab_size": runner.vocab_size,
            "model_revision": "judge",
            "eos_token_ids": (2,),
            "max_waiting": 1000,
            "max_waiting_per_tenant": 1000,
            "depth": runner.depth,
            "max_adapters": runner.adapters.slots if runner.adapters else 0,
        }
        self._loader = DirectLoader(runner.adapters, adapters) if runner.adapters and adapters else None
        config = SchedulerConfig(**(fields | changes))
        scheduler = Scheduler(config, blocks or runner.num_blocks, loader=self._loader)
        self.engine = Engine(scheduler, executor or runner)
        self._handle = 0

    def run(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, digests: Sequence[bytes] | None = None
    ) -> list[Outcome]:
        """All prompts at once, greedily, past any end token, each with the adapter of that digest (empty: none). Raises AssertionError
        where one is rejected.
        """
        wanted = digests or [b""] * len(prompts)
        handles = [self._submit(prompt, max_tokens, one) for prompt, one in zip(prompts, wanted, strict=True)]
        tokens: dict[int, list[int]] = {handle: [] for handle in handles}
        finished: dict[int, Finished] = {}
        while len(finished) < len(handles):
            output = self.engine.step()
            filled = self._loader.take() if self._loader else []
            for slot in filled:
                self.engine.adapter_loaded(slot)
            assert not self.engine.stalled or output.finished or filled, "the engine has work and cannot go on"
            for _, delta in output.deltas:
                tokens[delta.handle] += delta.tokens
            finished.update({end.handle: end for _, end in output.finished})
        while self.engine.has_work:
            self.engine.step()
        self.engine.check_integrity()
        return [Outcome(tokens=tuple(tokens[handle]), finished=finished[handle]) for handle in handles]

    def _submit(self, prompt: Sequence[int], max_tokens: int, digest: bytes) -> int:
        self._handle += 1
        request = TokenRequest(
            seq=self._handle,
            request_id=str(self._handle),
            tenant=OPEN_TENANT,
            prompt_tokens=prompt,
            choices=(Choice(handle=self._handle, index=0),),
            sampling=Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            adapter_digest=digest,
        )
        output = self.engine.submit(0, request)
        assert not output.rejected, output.rejected
        return self._handle
