"""What the ends that workers give mean to callers, and to the search for another worker."""

from collections.abc import Sequence

from router.fleet.fleet import no_such_model
from shared import errors
from shared.types import Finished, FinishReason, RejectCode, Rejected, Sampling

RETRY_AFTER = 1.0  # seconds, where a worker was lost: others take its place at once, and it comes back within some
VERSION_GONE = "adapter_version_unavailable"
STOPPED = "the worker that ran this has stopped"

RETRYABLE = frozenset(
    {
        RejectCode.QUEUE_FULL,
        RejectCode.DRAINING,
        RejectCode.NUMERICS,
        RejectCode.ADAPTER_VERSION_UNAVAILABLE,
        RejectCode.ADAPTER_UNKNOWN,
        RejectCode.ADAPTER_MEMORY,
    }
)


def exhausted(rejected: Rejected, model: str = "") -> errors.OctavoError:
    """What a caller is told when every worker has answered with a retryable rejection like this."""
    wait = 1.0 if rejected.retry_after_ms is None else rejected.retry_after_ms / 1000
    if rejected.code is RejectCode.QUEUE_FULL:
        return errors.Overloaded("every worker's queue is full", retry_after=wait)
    if rejected.code is RejectCode.DRAINING:
        return errors.Overloaded("every worker of this model is stopping", retry_after=1.0)
    if rejected.code is RejectCode.ADAPTER_UNKNOWN:
        return no_such_model(model)
    if rejected.code is RejectCode.ADAPTER_MEMORY:
        return errors.Overloaded(rejected.message, retry_after=wait, param="model", code="adapter_memory")
    if rejected.code is RejectCode.ADAPTER_VERSION_UNAVAILABLE:
        return errors.Unavailable(rejected.message, retry_after=RETRY_AFTER, code=VERSION_GONE)
    return errors.Unavailable(rejected.message)


def refusal(rejected: Rejected, prompt_param: str) -> errors.OctavoError:
    """A final rejection as the caller's error."""
    param = prompt_param if rejected.param in ("", "prompt_tokens", "prompt") else rejected.param
    if rejected.code is RejectCode.TOO_LONG:
        return errors.ContextLengthExceeded(rejected.message, param=param)
    if rejected.code is RejectCode.INVALID:
        return errors.InvalidRequest(rejected.message, param=param)
    if rejected.code is RejectCode.ADAPTER_INVALID:
        return errors.InvalidRequest(rejected.message, param="model", code="adapter_invalid")
    return exhausted(rejected)


def moves(finished: Finished) -> str | None:
    """Why a choice that ended so goes on elsewhere; None where its end is its own.

    A worker that aborts what nobody asked it to is stopping; an error that names no parameter is the worker's own.
    """
    if finished.reason is FinishReason.ABORTED:
        return "drained"
    return "failed" if finished.reason is FinishReason.ERROR and not finished.param else None


def error_of(finished: Finished) -> errors.OctavoError | None:
    """The error that a worker's end means; None for an end that is none."""
    match finished.reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.DEADLINE:
            return errors.DeadlineExceeded("the request's time ran out")
        case FinishReason.ABORTED:
            return errors.Unavailable(STOPPED, retry_after=RETRY_AFTER)
        case FinishReason.ERROR if finished.param:
            return errors.InvalidRequest(finished.message, param=finished.param)
        case FinishReason.ERROR:
            return errors.Internal(finished.message or "the worker failed on this request")


def own_end(received: Sequence[int], prompt: int, sampling: Sampling, stops: frozenset[int]) -> Finished | None:
    """The end that these outputs bring of themselves, as the worker that is gone would have told it; None where more were to come."""
    if not received:
        return None
    reason, stop = FinishReason.LENGTH, None
    if received[-1] in stops and len(received) > sampling.min_tokens:
        reason, stop = FinishReason.STOP, received[-1]
    elif len(received) < sampling.max_tokens:
        return None
    return Finished(
        handle=0, reason=reason, prompt_tokens=prompt, output_tokens=len(received), cached_tokens=0, stop_token=stop
    )
