"""A simulated router: the real index, cursors, accounts of unseen dispatches and policy; what is between is a delay."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from octavo.bench.placement.clock import SimClock
from octavo.bench.placement.trace import Arrival
from octavo.bench.placement.worker import SimWorker
from router.placement.cursor import KvCursor
from router.placement.index import KvIndex, Prediction
from router.placement.outputs import OutputMean
from router.placement.prompt import prompt_marks
from router.placement.unseen import Unseen
from router.placement.view import Policy, Want, WorkerView, view_of
from shared.hashing import chain
from shared.types import (
    OPEN_TENANT,
    Choice,
    Finished,
    KvDelta,
    KvSnapshot,
    Load,
    Rejected,
    Sampling,
    TokenDelta,
    TokenRequest,
)

SEED = chain(model_revision="simulated")


class Outcome(NamedTuple):
    """What came of a request. Times are seconds since it came."""

    at: float
    worker: str
    ttft: float
    e2e: float
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    output_tokens: int


@dataclass(kw_only=True, slots=True, eq=False)
class _Flight:
    arrival: Arrival
    came: float
    prompt: list[int]
    want: Want
    worker: str = ""
    tried: set[str] = field(default_factory=set)
    predicted: int = 0
    prediction: Prediction | None = None
    first_at: float = 0.0


class SimRouter:
    """One of several, none of which hears of another."""

    def __init__(self, policy: Policy, clock: SimClock, done: Callable[[Outcome], None]):
        self.index = KvIndex()
        self.failed = 0
        self._policy = policy
        self._clock = clock
        self._done = done
        self._outputs = OutputMean()
        self._links: dict[str, _Link] = {}
        self._queue: deque[_Flight] = deque()

    def connect(self, worker: SimWorker) -> None:
        """Begin a stream."""
        name = worker.info.worker_id
        self._links[name] = _Link(self, worker)

    def arrive(self, arrival: Arrival) -> None:
        """A request has come."""
        prompt = arrival.tokens()
        key, hashes = prompt_marks(SEED, prompt)
        want = Want(key=key, prompt_tokens=len(prompt), choices=1, hashes=hashes, session=arrival.session)
        self._queue.append(_Flight(arrival=arrival, came=self._clock(), prompt=prompt, want=want))
        self.pump()

    def pump(self) -> None:
        """Place what can be placed."""
        while self._queue and self._place(self._queue[0]):
            self._queue.popleft()

    def choose(self, views: Sequence[WorkerView], want: Want, most_outputs: int) -> tuple[str, Want]:
        """The decision alone, and the want with what it was made on."""
        seen = replace(want, cached=self.index.match(want.hashes), outputs=self._outputs.expected(most_outputs))
        return self._policy(views, seen), seen

    def views(self) -> list[WorkerView]:
        """The workers with credit."""
        return [view for link in self._links.values() if (view := link.view()) is not None]

    def _place(self, flight: _Flight) -> bool:
        views = [view for view in self.views() if view.worker_id not in flight.tried]
        if not views:
            return False
        flight.worker, want = self.choose(views, flight.want, flight.arrival.most_outputs)
        flight.tried.add(flight.worker)
        flight.predicted = want.cached.get(flight.worker, 0)
        self._links[flight.worker].submit(flight, want)
        return True

    def again(self, flight: _Flight) -> None:
        """It was given back: another worker, or nobody."""
        if len(flight.tried) == len(self._links):
            self.failed += 1
        else:
            self._queue.appendleft(flight)
        self.pump()

    def ended(self, flight: _Flight, finished: Finished) -> None:
        """It is whole."""
        self._outputs.ended(finished.output_tokens)
        outcome = Outcome(
            at=flight.came,
            worker=flight.worker,
            ttft=flight.first_at - flight.came,
            e2e=self._clock() - flight.came,
            prompt_tokens=finished.prompt_tokens,
            cached_tokens=finished.cached_tokens,
            predicted_tokens=flight.predicted,
            output_tokens=finished.output_tokens,
        )
        self._done(outcome)


class _Link:
    """A stream's router side."""

    def __init__(self, router: SimRouter, worker: SimWorker):
        self.dispatched = 0
        self._router = router
        self._worker = worker
        self._load: Load | None = None
        self._unseen = Unseen()
        self._flights: dict[int, _Flight] = {}  # by handle, which is the Submit's number here
        member = router.index.join(worker.info.worker_id, worker.info.total_blocks)
        self._cursor = KvCursor(router.index, member, lambda: None, lambda: None)
        self._stream = worker.connect(self)

    def view(self) -> WorkerView | None:
        """The worker, where it has credit."""
        load = self._load
        if load is None or load.credits <= len(self._unseen):
            return None
        return view_of(self._worker.info, load, pending=self._unseen.total, dispatched=self.dispatched)

    def submit(self, flight: _Flight, want: Want) -> None:
        """Send it."""
        self.dispatched += 1
        name, seq = self._worker.info.worker_id, self.dispatched
        self._unseen.add(seq, want.share(name))
        flight.prediction = self._router.index.predict(self._cursor.member, want.hashes)
        self._flights[seq] = flight
        request = TokenRequest(
            seq=seq,
            request_id="",
            tenant=OPEN_TENANT,
            prompt_tokens=flight.prompt,
            choices=(Choice(handle=seq, index=0),),
            sampling=Sampling(temperature=0.0, max_tokens=flight.arrival.output_tokens, ignore_eos=True),
        )
        self._worker.submit(self._stream, request)

    # ---- Listener

    def loaded(self, load: Load) -> None:
        """See Listener."""
        self._load = load
        self._unseen.covered(load.acked_seq)
        self._router.pump()

    def changed(self, delta: KvDelta) -> None:
        """See Listener."""
        self._cursor.delta(delta)

    def snapshot(self, piece: KvSnapshot) -> None:
        """See Listener."""
        self._cursor.snapshot(piece)

    def tokens(self, delta: TokenDelta) -> None:
        """See Listener."""
        flight = self._flights[delta.handle]
        if not flight.first_at and delta.tokens:
            flight.first_at = self._router._clock()
            if flight.prediction is not None:
                flight.prediction.fade()

    def finished(self, finished: Finished) -> None:
        """See Listener."""
        self._router.ended(self._flights.pop(finished.handle), finished)

    def rejected(self, rejected: Rejected) -> None:
        """See Listener."""
        flight = self._flights.pop(rejected.seq)
        self._unseen.drop(rejected.seq)
        if flight.prediction is not None:
            flight.prediction.release()
        self._router.again(flight)
