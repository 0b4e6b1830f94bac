"""What a flight's end means for its tenant's books."""

from dataclasses import replace

from router.dispatch.flight import Flight, Observer
from router.request import Usage
from router.tenancy.admission import Estimate, Reservation
from router.tenancy.metrics import TenantMetrics
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.types import AbortReason

# Ends that are the caller's own doing, or its deadline's: a worker's work for the prompt is paid for, though no token came of it.
_OWN_DOING = frozenset({"cancelled", "deadline_exceeded"})


def estimate(flight: Flight) -> Estimate:
    """What a request may use at most. Raises InvalidRequest or ContextLengthExceeded where the tenant may not ask for so much."""
    job, limits = flight.job, flight.job.request.caller.limits
    prompt, output = len(job.prompt), job.sampling.max_tokens
    if limits.max_n is not None and job.request.n > limits.max_n:
        raise InvalidRequest(f"n may be {limits.max_n} for this tenant", param="n")
    if limits.max_context is not None and prompt + output > limits.max_context:
        message = f"{prompt} tokens of prompt and {output} of output are more than this tenant's {limits.max_context}"
        param = job.request.prompt_param if prompt >= limits.max_context else "max_tokens"
        raise ContextLengthExceeded(message, param=param)
    outputs = 0 if job.request.prompt_only else output * job.request.n
    adapter = job.adapter.name if job.adapter else ""
    return Estimate(
        charge_id=job.id, model=job.pool.model, adapter=adapter, prompt_tokens=prompt, output_tokens=outputs
    )


def used(flight: Flight) -> Usage:
    """As its caller is told it."""
    usage = flight.usage()
    return replace(usage, completion_tokens=0) if flight.job.request.prompt_only else usage


def _finish(flight: Flight, outcome: str) -> str:
    reasons = {output.reason for output in flight.outputs}
    return reasons.pop() if outcome == "ok" and len(reasons) == 1 else outcome


class Accounted:
    """An Observer around another one: settles the reservation once the flight is over, or abandons it where nothing is owed.

    Nothing is owed for what no worker had, and for an error of ours, or of the request, before which no token came.
    """

    def __init__(self, inner: Observer, metrics: TenantMetrics):
        self._inner = inner
        self._metrics = metrics
        self.reservation: Reservation | None = None

    def resubmit(self, flight: Flight, reason: str) -> None:
        """See Observer."""
        self._inner.resubmit(flight, reason)

    def emitted(self, flight: Flight, index: int, tokens: int) -> None:
        """See Observer."""
        self._inner.emitted(flight, index, tokens)

    def aborted(self, reason: AbortReason, choices: int) -> None:
        """See Observer."""
        self._inner.aborted(reason, choices)

    def ended(self, flight: Flight, outcome: str) -> None:
        """See Observer."""
        self._inner.ended(flight, outcome)
        usage, tenant = used(flight), flight.job.request.caller.tenant.id
        owed = bool(flight.worker_id) and (outcome == "ok" or outcome in _OWN_DOING or usage.completion_tokens > 0)
        self._metrics.ended(tenant, outcome, usage if owed else None)
        if self.reservation is None:
            return
        if owed:
            self.reservation.settle(usage, _finish(flight, outcome), flight.worker_id)
        else:
            self.reservation.abandon()
