"""One admitted request, from the queue to its end: what it asks, where it runs, what came of it.

It ends exactly once: whole (every choice ended), by an error, or cancelled by its reader. Whatever ends it, its ticket is closed, so that
no worker works for nobody. Only a request of which no choice has a token is given to another worker; those that had it are not asked again.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from router.dispatch.delivery import Delivery
from router.fleet.fleet import PoolKey
from router.fleet.stream import Ticket
from router.placement.view import Want, prompt_key
from router.request import GenerateRequest, Logprobs, Piece, Usage
from router.text.output import ChoiceOutput, OutputSpec, shown_logprobs
from shared import errors
from shared.types import (
    AbortReason,
    Choice,
    Finished,
    FinishReason,
    RejectCode,
    Rejected,
    Sampling,
    Tenant,
    TokenDelta,
    TokenLogprobs,
    TokenRequest,
)

_LOG = logging.getLogger(__name__)

RETRY_AFTER = 1.0  # seconds, where a worker was lost: others take its place at once, and it comes back within some
_MOST_COUNTED = 512  # output tokens of a choice that the fair queue counts before any is made


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A validated request. Times are of the router's clock."""

    id: str
    request: GenerateRequest
    tenant: Tenant
    pool: PoolKey
    prompt: Sequence[int]
    sampling: Sampling
    output: OutputSpec
    arrived: float
    deadline: float | None

    @property
    def cost(self) -> float:
        """For the fair queue: as workers count, a prompt token 1 and an output token 2."""
        return len(self.prompt) + 2.0 * self.request.n * min(self.sampling.max_tokens, _MOST_COUNTED)

    def want(self) -> Want:
        """For a placement policy."""
        return Want(key=prompt_key(self.prompt), prompt_tokens=len(self.prompt), choices=self.request.n)

    def tokens(self, now: float) -> TokenRequest:
        """For a worker; seq and handles are the stream's to give."""
        return TokenRequest(
            seq=0,
            request_id=self.id,
            tenant=self.tenant,
            prompt_tokens=self.prompt,
            choices=tuple(Choice(handle=0, index=index) for index in range(self.request.n)),
            sampling=self.sampling,
            remaining_ms=None if self.deadline is None else max(1, int((self.deadline - now) * 1000)),
            traceparent=self.request.traceparent,
        )


class Observer(Protocol):
    """Whoever dispatches flights: hears when one needs another worker, and of what there is to measure."""

    def resubmit(self, flight: "Flight", reason: str) -> None:
        """Find another worker, or fail the flight."""

    def emitted(self, flight: "Flight", index: int, tokens: int) -> None:
        """A choice has new tokens."""

    def aborted(self, reason: AbortReason, choices: int) -> None:
        """Choices were aborted."""

    def ended(self, flight: "Flight", outcome: str) -> None:
        """The flight is over; `outcome` is ok, cancelled, or an error's code."""


@dataclass(kw_only=True, slots=True, eq=False)
class Flight:
    """See the module. A Sink of its ticket."""

    job: Job
    observer: Observer
    max_unread: int
    ticket: Ticket | None = None
    worker_id: str = ""
    tried: set[str] = field(default_factory=set)
    resubmits: int = 0
    begun: bool = False  # some choice has a token
    over: bool = False
    cached_tokens: int = 0
    overshoot: int = 0
    delivery: Delivery = field(init=False)
    outputs: list[ChoiceOutput] = field(init=False)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # accepted, begun or over
    failure: errors.OctavoError | None = None
    timer: asyncio.TimerHandle | None = None
    token_at: dict[int, float] = field(default_factory=dict)  # choice -> time of its last token
    _prompt: list[TokenLogprobs] = field(default_factory=list)  # of the prompt's tokens from the second on
    _unfinished: set[int] = field(default_factory=set)  # handles

    def __post_init__(self) -> None:
        self.delivery = Delivery(self.max_unread)
        self.outputs = [ChoiceOutput(self.job.output, index) for index in range(self.job.request.n)]

    def sent(self, ticket: Ticket, worker_id: str) -> None:
        """It is on its way to a worker."""
        self.ticket, self.worker_id = ticket, worker_id
        self.tried.add(worker_id)
        self._unfinished = set(ticket.handles)

    def usage(self) -> Usage:
        """Counts so far."""
        completion = sum(output.counted for output in self.outputs)
        return Usage(prompt_tokens=len(self.job.prompt), completion_tokens=completion, cached_tokens=self.cached_tokens)

    def prompt_logprobs(self) -> tuple[Logprobs | None, ...]:
        """See router.service.Generation."""
        if self.job.sampling.prompt_logprobs is None:
            return ()
        vocabulary, given = self.job.output.vocabulary, self.job.prompt[1:]
        return (None, *(shown_logprobs(vocabulary, token, row) for token, row in zip(given, self._prompt)))  # noqa: B905 (some may be missing)

    def cancel(self) -> None:
        """The reader has left."""
        self._end("cancelled", errors.Cancelled("the caller left"), AbortReason.CLIENT)

    def expire(self) -> None:
        """The request's time has run out."""
        self.fail(errors.DeadlineExceeded("the request's time ran out"), AbortReason.DEADLINE)

    def fail(self, error: errors.OctavoError, reason: AbortReason = AbortReason.CLIENT) -> None:
        """End by `error`; what runs is aborted for `reason`."""
        self._end(error.code, error, reason)

    # ---- Sink

    def accepted(self) -> None:
        """See Sink."""
        self.settled.set()

    def tokens(self, delta: TokenDelta) -> None:
        """See Sink."""
        if not self.over and self.ticket is not None:
            with self._contained():
                self._tokens(delta, self.ticket)

    def _tokens(self, delta: TokenDelta, ticket: Ticket) -> None:
        if delta.prompt is not None:
            self._prompt[delta.prompt.first - 1 :] = delta.prompt.rows
        if not delta.tokens:
            return
        self.begun = True
        index = self._index(delta.handle)
        output, before = self.outputs[index], self.outputs[index].counted
        piece = output.push(delta)
        if piece is None:
            return
        self.observer.emitted(self, index, output.counted - before)
        if piece.ended is not None:
            ticket.abort((delta.handle,), AbortReason.STOPPED)
            self.observer.aborted(AbortReason.STOPPED, 1)
        self._deliver(piece)

    def finished(self, finished: Finished) -> None:
        """See Sink."""
        if not self.over:
            with self._contained():
                self._finished(finished)

    def _finished(self, finished: Finished) -> None:
        output = self.outputs[self._index(finished.handle)]
        self.cached_tokens = max(self.cached_tokens, finished.cached_tokens)
        if not output.ended:
            if (error := _error_of(finished)) is not None:
                self.fail(error)
                return
            piece = output.finish(finished)
            if piece is not None:
                self._deliver(piece)
        self.overshoot += max(output.overshoot, finished.output_tokens - output.counted)
        self._unfinished.discard(finished.handle)
        if not self._unfinished and not self.over:
            self._end("ok", None, AbortReason.CLIENT)

    def rejected(self, rejected: Rejected) -> None:
        """See Sink."""
        if rejected.code in _RETRYABLE and not self.begun:
            self._again(rejected.code.value, _exhausted(rejected))
        else:
            self.fail(_refusal(rejected, self.job.request.prompt_param))

    def lost(self, message: str) -> None:
        """See Sink. Where every choice has ended already, only the worker's account of it is lost."""
        if all(output.ended for output in self.outputs):
            self._end("ok", None, AbortReason.CLIENT)
            return
        error = errors.Unavailable(message, retry_after=RETRY_AFTER)
        if self.begun:
            self.fail(error)
        else:
            self._again("lost", error)

    # ----

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """A fault in making text of what a worker sends ends this request: raised, it would end the stream, and all others of it."""
        try:
            yield
        except Exception:  # noqa: BLE001 - see above
            _LOG.exception("request %s cannot be told", self.job.id)
            self.fail(errors.Internal("the router failed on this request"))

    def _again(self, reason: str, otherwise: errors.OctavoError) -> None:
        """Ask for another worker; `otherwise` is the error where there is none."""
        self.ticket, self.failure = None, otherwise
        if not self.over:
            self.observer.resubmit(self, reason)

    def _index(self, handle: int) -> int:
        return self.ticket.handles.index(handle) if self.ticket else 0

    def _deliver(self, piece: Piece) -> None:
        self.settled.set()
        if not self.delivery.put(piece):
            self.fail(errors.Overloaded("the reader of this stream is too slow: too much of it is waiting"))

    def _end(self, outcome: str, error: errors.OctavoError | None, reason: AbortReason) -> None:
        if self.over:
            return
        self.over, self.failure = True, error
        if self.timer is not None:
            self.timer.cancel()
        if self.ticket is not None:
            self.observer.aborted(reason, self.ticket.close(reason))
        self.delivery.end(error)
        self.settled.set()
        self.observer.ended(self, outcome)


_RETRYABLE = frozenset(
    {RejectCode.QUEUE_FULL, RejectCode.DRAINING, RejectCode.ADAPTER_VERSION_UNAVAILABLE, RejectCode.NUMERICS}
)


def _exhausted(rejected: Rejected) -> errors.OctavoError:
    """What a caller is told when every worker has answered with a retryable rejection like this."""
    if rejected.code is RejectCode.QUEUE_FULL:
        wait = 1.0 if rejected.retry_after_ms is None else rejected.retry_after_ms / 1000
        return errors.Overloaded("every worker's queue is full", retry_after=wait)
    if rejected.code is RejectCode.DRAINING:
        return errors.Overloaded("every worker of this model is stopping", retry_after=1.0)
    return errors.Unavailable(rejected.message)


def _refusal(rejected: Rejected, prompt_param: str) -> errors.OctavoError:
    """A final rejection as the caller's error."""
    param = prompt_param if rejected.param in ("", "prompt_tokens", "prompt") else rejected.param
    if rejected.code is RejectCode.TOO_LONG:
        return errors.ContextLengthExceeded(rejected.message, param=param)
    if rejected.code is RejectCode.INVALID:
        return errors.InvalidRequest(rejected.message, param=param)
    return _exhausted(rejected)


def _error_of(finished: Finished) -> errors.OctavoError | None:
    """The error that a worker's end means; None for an end that is none."""
    match finished.reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.DEADLINE:
            return errors.DeadlineExceeded("the request's time ran out")
        case FinishReason.ABORTED:
            return errors.Unavailable("the worker that ran this has stopped", retry_after=RETRY_AFTER)
        case FinishReason.ERROR if finished.param:
            return errors.InvalidRequest(finished.message, param=finished.param)
        case FinishReason.ERROR:
            return errors.Internal(finished.message or "the worker failed on this request")
