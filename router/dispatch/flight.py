"""One admitted request, from the queue to its end: what it asks, where it runs, what came of it.

It ends exactly once: whole (every choice ended), by an error, or cancelled by its reader. Whatever ends it, its ticket is closed, so that
no worker works for nobody. Where its worker is lost, stops, or fails on it, the choices that have not ended go on elsewhere: the
tokens that are here are given to the next worker, which replays them and sends what follows.
"""

import asyncio
import logging
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from router.adapters.view import AdapterRef
from router.dispatch.delivery import Delivery
from router.dispatch.deltas import first, joined
from router.dispatch.ends import RETRY_AFTER, RETRYABLE, error_of, exhausted, moves, own_end, refusal
from router.dispatch.pace import Pace
from router.dispatch.trail import Trail
from router.fleet.fleet import PoolKey
from router.fleet.stream import Loss, Ticket
from router.placement.prompt import PromptMarks
from router.placement.view import Want
from router.request import GenerateRequest, Logprobs, Piece, Usage
from router.tenancy import salts
from router.text.output import ChoiceOutput, OutputSpec, shown_logprobs
from shared import errors
from shared.types import (
    AbortReason,
    Choice,
    Finished,
    PromptLogprobs,
    RejectCode,
    Rejected,
    Sampling,
    Tenant,
    TokenDelta,
    TokenLogprobs,
    TokenRequest,
)

_LOG = logging.getLogger(__name__)

_MOST_MS = 1 << 32  # of a remaining time, which goes to workers as 32 bits
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
    marks: PromptMarks
    adapter: AdapterRef | None = None

    @property
    def cost(self) -> float:
        """For the fair queue: as workers count, a prompt token 1 and an output token 2."""
        return len(self.prompt) + 2.0 * self.request.n * min(self.sampling.max_tokens, _MOST_COUNTED)

    def want(self) -> Want:
        """For a placement policy."""
        key, hashes = self.marks
        return Want(
            key=key,
            hashes=hashes,
            prompt_tokens=len(self.prompt),
            choices=self.request.n,
            adapter=self._digest,
            session=salts.session(self.tenant.salt, self.pool.revision, self._digest, self.request.prompt_cache_key),
        )

    @property
    def _digest(self) -> bytes:
        return self.adapter.digest if self.adapter else b""

    def _remaining_ms(self, now: float) -> int | None:
        """None where the deadline is further away than the wire can tell (50 days): that is none."""
        left = math.inf if self.deadline is None else (self.deadline - now) * 1000
        return max(1, int(left)) if left < _MOST_MS else None

    def tokens(self, now: float) -> TokenRequest:
        """For a worker; seq and handles are the stream's to give."""
        return TokenRequest(
            seq=0,
            request_id=self.id,
            tenant=self.tenant,
            prompt_tokens=self.prompt,
            choices=tuple(Choice(handle=0, index=index) for index in range(self.request.n)),
            sampling=self.sampling,
            remaining_ms=self._remaining_ms(now),
            traceparent=self.request.traceparent,
            adapter_digest=self._digest,
            adapter_name=self.adapter.name if self.adapter else "",
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
    pace: Pace
    ticket: Ticket | None = None
    trail: Trail = field(default_factory=Trail)
    dispatched: bool = False  # some worker had it
    resubmits: int = 0
    begun: bool = False  # some choice has a token
    numerics: str = ""  # what its tokens so far were made with, where all were made alike
    inexact: bool = False  # it went on with other numerics: its tokens may not be those of one worker
    over: bool = False
    cached_tokens: int = 0
    overshoot: int = 0
    delivery: Delivery = field(init=False)
    outputs: list[ChoiceOutput] = field(init=False)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # accepted, begun or over
    failure: errors.OctavoError | None = None
    timer: asyncio.TimerHandle | None = None
    patience: asyncio.TimerHandle | None = None  # while no worker can take it
    back_because: str = ""  # why its last worker does not run it any more, until it has a token again
    token_at: dict[int, float] = field(default_factory=dict)  # choice -> time of its last token
    _prompt: list[TokenLogprobs] = field(default_factory=list)  # of the prompt's tokens from the second on
    _received: "list[array[int]]" = field(init=False)  # token ids of each choice, those after a stop string left out
    _index_of: dict[int, int] = field(default_factory=dict)  # handle -> choice, of those that run
    _numerics_there: str = ""
    _held: list[TokenDelta] = field(default_factory=list)  # of choices that are under way, to be told together

    def __post_init__(self) -> None:
        self.delivery = Delivery(self.max_unread)
        self.outputs = [ChoiceOutput(self.job.output, index) for index in range(self.job.request.n)]
        self._received = [array("I") for _ in self.outputs]

    @property
    def worker_id(self) -> str:
        """Of the worker that has it or had it last."""
        return self.trail.worker_id

    def equals(self, worker_id: str, numerics_id: str) -> bool:
        """Whether this worker, of these numerics, goes on with the tokens so far as the one that made them would."""
        return bool(self.numerics) and numerics_id == self.numerics and worker_id not in self.trail.unequal

    def token_request(self, now: float, worker_id: str, numerics_id: str) -> TokenRequest:
        """For a worker of these numerics: the choices that have not ended, each from where it is."""
        fresh = self.job.tokens(now)
        if not self.begun:
            return fresh
        going = [choice for choice in fresh.choices if not self.outputs[choice.index].ended]
        choices = tuple(replace(choice, output_tokens=tuple(self._received[choice.index])) for choice in going)
        same = numerics_id if self.equals(worker_id, numerics_id) else ""
        return replace(fresh, choices=choices, resumed=True, numerics_id=same)

    def sent(self, ticket: Ticket, worker_id: str, numerics_id: str) -> None:
        """It is on its way to a worker."""
        going = [index for index, output in enumerate(self.outputs) if not (self.begun and output.ended)]
        self.ticket, self.dispatched = ticket, True
        self._numerics_there = "" if worker_id in self.trail.unequal else numerics_id
        self._index_of = dict(zip(ticket.handles, going, strict=True))
        self.trail.sent(worker_id)
        self.be_patient(None)

    def be_patient(self, timer: asyncio.TimerHandle | None) -> None:
        """`timer` ends the wait for a worker; None, where there is no wait any more."""
        if self.patience is not None:
            self.patience.cancel()
        self.patience = timer

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
        self.settle()
        self._end("cancelled", errors.Cancelled("the caller left"), AbortReason.CLIENT)

    def expire(self) -> None:
        """The request's time has run out."""
        self.fail(errors.DeadlineExceeded("the request's time ran out"), AbortReason.DEADLINE)

    def fail(self, error: errors.OctavoError, reason: AbortReason = AbortReason.CLIENT) -> None:
        """End by `error`; what runs is aborted for `reason`."""
        self.settle()
        self._end(error.code, error, reason)

    # ---- Sink

    def accepted(self) -> None:
        """See Sink. An adapter may still be read then, and be refused: that is to be the whole answer."""
        if self.job.adapter is None:
            self.settled.set()

    def tokens(self, delta: TokenDelta) -> None:
        """See Sink."""
        if self.over or self.ticket is None:
            return
        if self._may_wait(delta):
            self._held.append(delta)
            self.pace.hold(self)
            return
        with self._contained():
            self._tokens(delta, self.ticket)

    def _may_wait(self, delta: TokenDelta) -> bool:
        """No choice's first tokens and no worker's, and none that may complete a stop string, after which the worker is to be told."""
        if self.pace.most <= 0 or self.job.output.stops is not None or not self.trail.progressed:
            return False
        index = self._index_of.get(delta.handle)
        return delta.prompt is None and index is not None and bool(self._received[index])

    def settle(self) -> None:
        """Tell what was held."""
        held, self._held = self._held, []
        if held and not self.over and self.ticket is not None:
            with self._contained():
                for delta in joined(held):
                    if not self.over:
                        self._tokens(delta, self.ticket)

    def _tokens(self, delta: TokenDelta, ticket: Ticket) -> None:
        if delta.prompt is not None:
            self._take_prompt(delta.prompt)
        index = self._index_of[delta.handle]
        output, before = self.outputs[index], self.outputs[index].counted
        delta = first(delta, self.job.sampling.max_tokens - before)
        if not delta.tokens:
            return
        if not self.trail.progressed:
            self._progressed()
        piece = output.push(delta)
        if piece is None:
            return
        self._received[index].extend(piece.tokens)
        self.observer.emitted(self, index, output.counted - before)
        if piece.ended is not None:
            ticket.abort((delta.handle,), AbortReason.STOPPED)
            self.observer.aborted(AbortReason.STOPPED, 1)
        self._deliver(piece)

    def _take_prompt(self, told: PromptLogprobs) -> None:
        """Where they were asked for, and of no more tokens than the prompt has."""
        if self.job.sampling.prompt_logprobs is not None:
            self._prompt[told.first - 1 :] = told.rows
            del self._prompt[len(self.job.prompt) - 1 :]

    def _progressed(self) -> None:
        """The first token of this worker's."""
        if not self.begun:
            self.begun, self.numerics = True, self._numerics_there
        elif not self.numerics or self.numerics != self._numerics_there:
            self.numerics, self.inexact = "", True
        self.trail.token()

    def finished(self, finished: Finished) -> None:
        """See Sink."""
        self.settle()
        if not self.over:
            with self._contained():
                self._finished(finished)

    def _finished(self, finished: Finished) -> None:
        output = self.outputs[self._index_of.pop(finished.handle)]
        self.cached_tokens = max(self.cached_tokens, min(finished.cached_tokens, len(self.job.prompt)))
        if not output.ended:
            if (reason := moves(finished)) is not None:
                self._given_back(finished, reason)
                return
            if (error := error_of(finished)) is not None:
                self.fail(error)
                return
            if (piece := output.finish(finished)) is not None:
                self._deliver(piece)
        self.overshoot += max(output.overshoot, finished.output_tokens - output.counted)
        if not self._index_of and not self.over:
            self._end("ok", None, AbortReason.CLIENT)

    def _given_back(self, finished: Finished, reason: str) -> None:
        """The worker has ended a choice before its end: all that has not ended goes on elsewhere."""
        error = error_of(finished)
        assert error is not None
        if self.ticket is not None:
            self.observer.aborted(AbortReason.CLIENT, self.ticket.close(AbortReason.CLIENT))
        if reason == "failed":
            self.trail.lost(Loss(message=error.message, suspects=1))
        else:
            self.trail.sent_back()
        self._go_on(reason, error)

    def rejected(self, rejected: Rejected) -> None:
        """See Sink."""
        self.settle()
        if rejected.code in RETRYABLE:
            self.trail.other_numerics() if rejected.code is RejectCode.NUMERICS else self.trail.sent_back()
            self._again(rejected.code.value, exhausted(rejected, self.job.request.model))
        else:
            self.fail(refusal(rejected, self.job.request.prompt_param))

    def lost(self, loss: Loss) -> None:
        """See Sink."""
        self.settle()
        if loss.expected:
            self.trail.sent_back()
        else:
            self.trail.lost(loss)
        reason = "drained" if loss.expected else "lost"
        self._go_on(reason, errors.Unavailable(loss.message, retry_after=RETRY_AFTER))

    def _go_on(self, reason: str, otherwise: errors.OctavoError) -> None:
        """Have what has not ended go on elsewhere; nothing may be left of it."""
        self.ticket = None
        with self._contained():
            self._end_what_is_whole()
        if not self.over and all(output.ended for output in self.outputs):
            self._end("ok", None, AbortReason.CLIENT)
        self._again(reason, otherwise)

    def _end_what_is_whole(self) -> None:
        """Choices whose last token is here end as the worker would have ended them."""
        job = self.job
        for output, received in zip(self.outputs, self._received, strict=True):
            end = own_end(received, len(job.prompt), job.sampling, job.output.stop_tokens)
            if end is not None and not output.ended and (piece := output.finish(end)) is not None:
                self._deliver(piece)

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
        if not self.over:
            self.ticket, self.failure = None, otherwise
            self.observer.resubmit(self, reason)

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
        self.be_patient(None)
        if self.ticket is not None:
            self.observer.aborted(reason, self.ticket.close(reason))
        self.delivery.end(error)
        self.settled.set()
        self.observer.ended(self, outcome)
