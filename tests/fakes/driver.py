"""Hand-written plans: drives an executor for some sequences, with blocks and slots given out one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.types import Sampling, TokenLogprobs
from worker.plan import Chunk, Executor, SampleRow, SlotStart, StepPlan, StepResult, TableWrite

BLOCK = 16


@dataclass
class Run:
    """One sequence as the driver sees it."""

    slot: int
    prompt: list[int]
    sampling: Sampling
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)


class Driver:
    """Runs sequences to `max_tokens`; `free` blocks are taken from its end."""

    def __init__(self, executor: Executor, free: Sequence[int]):
        self.executor = executor
        self.free = list(free)
        self.step = 0

    def add(self, slot: int, prompt: Sequence[int], sampling: Sampling) -> Run:
        return Run(slot, list(prompt), sampling)

    def start(self, *sequences: Run) -> StepPlan:
        """A plan that only lets the sequences take their slots."""
        starts = tuple(
            SlotStart(slot=s.slot, tokens=s.prompt, prompt_len=len(s.prompt), sampling=s.sampling, choice_index=0)
            for s in sequences
        )
        return StepPlan(step=self.step, starts=starts)

    def table(self, sequence: Run, upto: int) -> tuple[TableWrite, ...]:
        """Give the sequence blocks for positions below `upto`."""
        first = len(sequence.blocks)
        sequence.blocks += [self.free.pop() for _ in range(-(-upto // BLOCK) - first)]
        added = tuple(sequence.blocks[first:])
        return (TableWrite(sequence.slot, first, added),) if added else ()

    def plan(self, work: Sequence[tuple[Run, int]]) -> StepPlan:
        """Each sequence computes the next so many of its positions and samples once all are."""
        tables, chunks, samples = [], [], []
        for sequence, length in work:
            end = sequence.computed + length
            tables += self.table(sequence, end)
            if end == sequence.known:
                samples.append(SampleRow(len(chunks), sequence.slot, end))
            chunks.append(Chunk(sequence.slot, sequence.computed, length))
            sequence.computed = end
        self.step += 1
        return StepPlan(step=self.step, tables=tuple(tables), chunks=tuple(chunks), samples=tuple(samples))

    def take(self, sequences: Sequence[Run], plan: StepPlan, result: StepResult) -> None:
        by_slot = {s.slot: s for s in sequences}
        for row, token, logprob, error in zip(plan.samples, result.tokens, result.logprobs, result.errors, strict=True):
            assert error is None
            by_slot[row.slot].output.append(token)
            by_slot[row.slot].logprobs.append(logprob)

    def run(self, sequences: Sequence[Run], chunk: int = 1 << 30) -> None:
        """All sequences together, prompts in chunks, until each has its max_tokens."""
        self.executor.execute(self.start(*sequences)).result()
        while live := [s for s in sequences if len(s.output) < s.sampling.max_tokens]:
            plan = self.plan([(s, min(chunk, s.known - s.computed)) for s in live])
            self.take(live, plan, self.executor.execute(plan).result())
