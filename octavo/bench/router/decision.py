"""What one decision takes: who takes work, what each worker has of the prompt, the policy; and what the index is told of it.

The links, streams, index and policy are the router's own; only sockets are missing. Every worker has some of every prompt, each another
share of it, so that nothing is cut short.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import cast

from octavo.bench.metrics import percentile
from router.dispatch.placing import Placing
from router.fleet.link import Connected, LinkContext, WorkerLink
from router.fleet.liveness import Liveness
from router.fleet.settings import LinkSettings
from router.fleet.stream import WorkerStream
from router.fleet.tokenizers import TokenizerStore
from router.placement.cursor import KvCursor
from router.placement.index import KvIndex
from router.placement.prompt import PromptMarks, prompt_marks
from router.placement.view import Want
from router.text.tokenizer import ModelText
from shared.hashing import chain
from shared.types import KvDelta, KvSnapshot, Load, WorkerInfo
from shared.wire import worker as wire

BLOCKS = 200_000  # of each worker
_US = 1e6


def info_of(number: int, blocks: int) -> WorkerInfo:
    """A worker that runs much at once."""
    return WorkerInfo(
        worker_id=f"worker-{number}",
        model="simulated",
        model_revision="1",
        tokenizer_digest="t",
        numerics_id="n",
        max_model_len=1 << 20,
        vocab_size=1 << 17,
        block_size=16,
        total_blocks=blocks,
        max_running=256,
        eos_token_ids=(0,),
        version="0",
    )


def load_of(luck: random.Random, blocks: int) -> Load:
    """A busy worker's report."""
    return Load(
        step_seq=1,
        acked_seq=0,
        running=luck.randrange(100),
        waiting=luck.randrange(4),
        waiting_uncached_tokens=luck.randrange(8_000),
        context_tokens=luck.randrange(100_000),
        free_blocks=luck.randrange(blocks // 2, blocks),
        total_blocks=blocks,
        has_work=True,
        last_step_age_ms=5,
        predicted_step_ms=20.0,
        prefill_tokens_per_s=10_000.0,
        credits=1_000,
        step_us_per_sequence=50.0,
        step_us_per_context_token=0.05,
        step_us_per_pair=0.001,
    )


class Alone:
    """Implements router.fleet.link.LinkOwner: nobody listens."""

    def joined(self, link: WorkerLink) -> None:
        """See LinkOwner."""

    def changed(self, link: WorkerLink) -> None:
        """See LinkOwner."""

    def alone(self, link: WorkerLink) -> bool:
        """See LinkOwner."""
        del link
        return False


@dataclass(kw_only=True)
class Fleet:
    """Links to connected workers, and what places requests on them."""

    index: KvIndex = field(default_factory=KvIndex)
    links: list[WorkerLink] = field(default_factory=list)
    cursors: list[KvCursor] = field(default_factory=list)
    placing: Placing = field(init=False)

    def __post_init__(self) -> None:
        self.placing = Placing("cost", self.index)

    def report(self, luck: random.Random, blocks: int) -> None:
        """Every worker tells of itself."""
        for link in self.links:
            assert link.worker is not None
            link.worker.stream.handle(wire.load_to_pb(load_of(luck, blocks)))

    def tell(self, number: int, added: Sequence[bytes], removed: Sequence[bytes] = ()) -> None:
        """A worker's cache has changed."""
        epoch, sequence = self.cursors[number].position
        delta = KvDelta(epoch=epoch, sequence=sequence + 1, added=tuple(added), removed=tuple(removed))
        self.cursors[number].delta(delta)

    def decide(self, want: Want) -> tuple[WorkerLink, Want]:
        """As the dispatcher decides."""
        now = time.monotonic()
        there = [link for link in self.links if link.takes_work(now)]
        seen = {view.worker_id: (view, link) for link in there if (view := link.view(now)) is not None}
        chosen, judged = self.placing.choose([view for view, _ in seen.values()], want, max_tokens=256)
        return seen[chosen][1], judged


def _nothing() -> None:
    """Nobody is told."""


def fleet(workers: int, blocks: int = BLOCKS) -> Fleet:
    """So many workers, each connected, reported and known to have nothing."""
    made = Fleet()
    context = LinkContext(
        router_id="bench",
        settings=LinkSettings(credit_ttl=1e9, suspect_after=1e9, dead_after=1e9),
        clock=time.monotonic,
        tokenizers=TokenizerStore(None),
        owner=Alone(),
        index=made.index,
    )
    for number in range(workers):
        link, info = WorkerLink(f"worker-{number}:1", context), info_of(number, blocks)
        stream = WorkerStream(
            Liveness(context.settings, time.monotonic()), link.breaker, time.monotonic, _nothing, vocab_size=2
        )
        cursor = stream.cursor = KvCursor(made.index, made.index.join(info.worker_id, blocks), _nothing, _nothing)
        cursor.snapshot(KvSnapshot(epoch=1, sequence=0, hashes=(), last=True))
        link.worker = Connected(info=info, text=cast(ModelText, None), stream=stream)  # no text is made here
        made.links.append(link)
        made.cursors.append(cursor)
    made.report(random.Random(0), blocks)
    return made


def _prompt(luck: random.Random, tokens: int) -> PromptMarks:
    linked = chain(model_revision="1")
    return prompt_marks(linked, [luck.randrange(1 << 17) for _ in range(tokens)])


def _wants(luck: random.Random, tokens: int, count: int) -> list[Want]:
    marks = [_prompt(luck, tokens) for _ in range(count)]
    return [Want(key=each.key, hashes=each.hashes, prompt_tokens=tokens, choices=1) for each in marks]


def decisions(*, workers: int, tokens: int, prompts: int, rounds: int) -> dict[str, float]:
    """Microseconds of a decision on prompts of so many tokens; `all_reported` where every worker has reported since the last one."""
    luck = random.Random(tokens)
    made, wants = fleet(workers), _wants(luck, tokens, prompts)
    for number in range(workers):
        made.tell(number, [each for want in wants for each in want.hashes[: luck.randrange(len(want.hashes) + 1)]])
    fresh, reported, expected = [], [], []
    for turn in range(rounds):
        want = wants[turn % prompts]
        made.report(luck, BLOCKS)
        began = time.perf_counter()
        made.decide(want)
        reported.append(time.perf_counter() - began)
        began = time.perf_counter()
        link, judged = made.decide(want)
        fresh.append(time.perf_counter() - began)
        began = time.perf_counter()
        made.placing.sent(link, link.member, judged)
        made.placing.over(link)
        expected.append(time.perf_counter() - began)
    return {
        "p50_us": _US * median(fresh),
        "p99_us": _US * percentile(fresh, 99),
        "all_reported_p50_us": _US * median(reported),
        "all_reported_p99_us": _US * percentile(reported, 99),
        "expecting_p50_us": _US * median(expected),
    }
