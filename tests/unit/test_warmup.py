"""The step before READY leaves nothing behind that a request could see."""

from worker.plan import StepPlan, StepResult
from worker.warmup import warm_up


class _Recording:
    """Keeps the plans that it is given."""

    depth = 0

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> "_Recording":
        self.plans.append(plan)
        return self

    def result(self) -> StepResult:
        return StepResult(tokens=[0], logprobs=[None], errors=[None])


def test_the_warm_up_is_one_whole_prefill() -> None:
    executor = _Recording()
    assert warm_up(executor, 40) >= 0
    (plan,) = executor.plans
    assert [(c.slot, c.start, c.length) for c in plan.chunks] == [(0, 0, 40)]
    assert plan.tables[0].blocks == (0, 1, 2)
    assert [(row.chunk, row.slot, row.position) for row in plan.samples] == [(0, 0, 40)]
