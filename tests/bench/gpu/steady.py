"""Whether the host waits for the device in a decode step that is like the one before it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from worker.execution.build import Runner
from worker.plan import Pending, StepPlan

_FIRST = 3  # decode steps in a row that may wait: they compile, and record


class Steady:
    """A runner whose steps are started inside of `around` once they are steady: nothing but decodes, some of which came before. `steps`
    counts those.
    """

    def __init__(self, runner: Runner, around: Callable[[], AbstractContextManager[object]]):
        self._runner, self._around, self._row = runner, around, 0
        self.steps = 0
        self.depth = runner.depth
        self.max_model_len, self.vocab_size, self.num_blocks = (
            runner.max_model_len,
            runner.vocab_size,
            runner.num_blocks,
        )

    def execute(self, plan: StepPlan) -> Pending:
        """See Executor."""
        decodes = bool(plan.samples) and not plan.starts and all(chunk.length == 1 for chunk in plan.chunks)
        self._row = self._row + 1 if decodes else 0
        if self._row <= _FIRST:
            return self._runner.execute(plan)
        self.steps += 1
        with self._around():
            return self._runner.execute(plan)


@contextmanager
def waits_refused() -> Iterator[None]:
    """Inside, what torch knows to wait for the device raises RuntimeError: a look at a value, a copy from memory that is not pinned."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
