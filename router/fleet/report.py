"""What operators are told of a worker."""

from dataclasses import dataclass

from router.fleet.link import WorkerLink


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerReport:
    """A target and the worker there, as this router sees them. Of one that is down, only target and state are known."""

    target: str
    state: str  # a LinkState's value
    worker_id: str = ""
    model: str = ""
    revision: str = ""
    version: str = ""
    max_model_len: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0


def report(link: WorkerLink, now: float) -> WorkerReport:
    """The link's worker at `now`."""
    state = link.state(now).value
    if link.worker is None:
        return WorkerReport(target=link.target, state=state)
    info, load = link.worker.info, link.worker.stream.liveness.load
    return WorkerReport(
        target=link.target,
        state=state,
        worker_id=info.worker_id,
        model=info.model,
        revision=info.model_revision,
        version=info.version,
        max_model_len=info.max_model_len,
        running=load.running if load else 0,
        waiting=load.waiting if load else 0,
        free_blocks=load.free_blocks if load else info.total_blocks,
        total_blocks=info.total_blocks,
    )
