"""A link's kept view is the view made anew, after whatever changes; and it is kept where nothing does."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.bench.router.decision import fleet, info_of
from protos import worker_pb2 as pb
from router.adapters.view import WorkerAdapters
from router.fleet.link import Connected, WorkerLink
from router.fleet.stream import Ticket, WorkerStream
from router.placement import POLICIES
from router.placement.view import Share, Want, WorkerView, view_of
from shared.types import AbortReason, AdapterInfo, AdapterLevel, AdapterLoad, AdapterState, RejectCode, Rejected
from shared.wire import worker as wire
from shared.wire.adapters import adapter_state_to_pb
from tests.fakes.engine import token_request
from tests.fakes.scripted_worker import load_report

DIGESTS = [bytes([number]) * 32 for number in range(2)]


class Deaf:
    """A Sink that takes no notice."""

    def accepted(self) -> None:
        pass

    def tokens(self, delta: Any) -> None:
        pass

    finished = rejected = lost = tokens


def anew(link: WorkerLink) -> WorkerView:
    """As if nothing had ever been kept."""
    assert link.worker is not None
    info, stream = link.worker.info, link.worker.stream
    load = stream.liveness.load
    assert load is not None
    adapters = WorkerAdapters()
    adapters.entries = dict(stream.adapters.entries)
    shares = stream._unseen._shares.values()
    pending = Share(*(sum(column) for column in zip(*shares, strict=True))) if shares else Share(0)
    made = view_of(info, load, pending=pending, dispatched=link.dispatched)
    return dataclasses.replace(made, adapters=adapters.uses(load)) if info.max_adapters else made


class Changes:
    """What can befall a link, each by a number that varies it."""

    def __init__(self) -> None:
        self.link = fleet(1, 1_000).links[0]
        self.tickets: list[Ticket] = []
        self.connect(0)

    @property
    def stream(self) -> WorkerStream:
        assert self.link.worker is not None
        return self.link.worker.stream

    def connect(self, number: int) -> None:
        """Another connection, to the same worker or another one."""
        link, old = self.link, self.link.worker
        assert old is not None
        info = info_of(number % 2, 1_000 + number)
        info = dataclasses.replace(info, max_adapters=4 if number < 3 else 0)
        stream = WorkerStream(old.stream.liveness, link.breaker, link._context.clock, lambda: None, vocab_size=2)
        stream.cursor = old.stream.cursor
        link.worker, self.tickets = Connected(info=info, text=old.text, stream=stream), []

    def report(self, number: int) -> None:
        uses = tuple(
            AdapterLoad(digest=digest, running=number, waiting=0, idle_ms=9) for digest in DIGESTS[: number % 3]
        )
        self.stream.handle(wire.load_to_pb(load_report(running=number, acked_seq=0, adapters=uses)))

    def cover(self, number: int) -> None:
        self.stream.handle(wire.load_to_pb(load_report(acked_seq=number)))

    def send(self, number: int) -> None:
        share = Share(1, number, 2 * number, number % 2, 3 * number)
        self.tickets.append(self.link.submit(token_request(0, 0), Deaf(), share))

    def write(self, number: int) -> None:
        """The next frame goes out: what it belongs to cannot be taken back."""
        del number
        if self.stream.outbound._entries:
            self.stream.outbound._next()

    def close(self, number: int) -> None:
        if self.tickets:
            self.tickets.pop(number % len(self.tickets)).close(AbortReason.CLIENT)

    def reject(self, number: int) -> None:
        if self.tickets:
            seq = self.tickets.pop(number % len(self.tickets)).seq
            self.stream.handle(wire.reject_to_pb(Rejected(seq=seq, code=RejectCode.QUEUE_FULL, message="")))

    def adapter(self, number: int) -> None:
        level = [AdapterLevel.SOURCE, AdapterLevel.HOST, AdapterLevel.DEVICE][number % 3]
        info = AdapterInfo(name=f"a{number % 2}", digest=DIGESTS[number % 2], level=level)
        for frame in adapter_state_to_pb(AdapterState(entries=(info,))):
            self.stream.handle(frame)

    def unload(self, number: int) -> None:
        for frame in adapter_state_to_pb(AdapterState(removed=(f"a{number % 2}",))):
            self.stream.handle(frame)

    def told(self, number: int) -> None:
        """A call's answer, before any frame."""
        self.stream.adapters.note(AdapterInfo(name=f"a{number % 2}", digest=DIGESTS[0], level=AdapterLevel.DEVICE))

    def told_gone(self, number: int) -> None:
        self.stream.adapters.note_gone(f"a{number % 2}")

    def drain(self, number: int) -> None:
        """It tells that it stops, or that it goes on."""
        self.stream.handle(wire.load_to_pb(load_report(draining=bool(number % 2))))

    def joined(self, number: int) -> None:
        """As Fleet.joined gives a newcomer its turn count."""
        self.link.dispatched = max(self.link.dispatched, number)


ACTS: list[Callable[[Changes, int], None]] = [
    *(Changes.connect, Changes.report, Changes.cover, Changes.send, Changes.write, Changes.close, Changes.reject),
    *(Changes.adapter, Changes.unload, Changes.told, Changes.told_gone, Changes.drain, Changes.joined),
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 5)), max_size=30))
def test_a_kept_view_is_the_view_made_anew_after_every_change(acts: Any) -> None:
    changes = Changes()
    for act, number in acts:
        noted = dict(changes.stream.adapters._noted)
        if noted and act in (Changes.adapter, Changes.unload):
            continue  # a frame that contradicts an answer is believed later, by a loop that is not here
        act(changes, number)
        kept, link = changes.link.known_view(), changes.link
        assert kept == anew(link)
        assert link.known_view() is kept
        seen = link.view(link._context.clock())
        assert seen is (None if changes.stream.liveness.draining or not changes.stream.takes(0.0) else kept)


def test_a_decision_changes_no_view() -> None:
    made = fleet(4)
    luck = random.Random(0)
    made.report(luck, 1_000)
    views = [link.known_view() for link in made.links]
    before = [anew(link) for link in made.links]
    for policy in POLICIES.values():
        for adapter in (b"", DIGESTS[0]):
            policy([view for view in views if view], Want(key=b"k", prompt_tokens=99, choices=1, adapter=adapter))
    assert views == before
    assert all(link.known_view() is view for link, view in zip(made.links, views, strict=True))


def test_tokens_are_no_change() -> None:
    """Frames that tell nothing of the worker leave its view as it is."""
    link = fleet(1).links[0]
    assert link.worker is not None
    before = link.known_view()
    link.worker.stream.handle(pb.Down(step_batch=pb.StepBatch(step_seq=1)))
    assert link.known_view() is before


def test_another_worker_with_the_same_report_is_another_view() -> None:
    changes = Changes()
    for number in (3, 4):
        changes.connect(number)
        assert changes.link.known_view() == anew(changes.link)
