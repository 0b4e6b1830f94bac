"""An executor without a model: it keeps a KV of numbers, reaches it only through the block tables, and draws tokens from what it reads.

The KV at a position is a mix of its token with the KV before it, and a sampled token is a hash of all KV that its row can see. So any wrong
table, copy, chunk, cached block or replay changes tokens, or reads what was never written. `alone` gives what must come out.

An adapter changes what position 0's KV is mixed with, and so everything behind it. A `FakeDevice` holds which one is in which slot.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shared.types import Sampling, TokenLogprobs
from worker.plan import Chunk, PromptRows, RowError, SampleRow, SlotStart, StepPlan, StepResult

BLOCK = 16
MASK = (1 << 61) - 1
NOT_FINITE = RowError(message="logits are not finite")


def _mix(before: int, token: int) -> int:
    return (before * 6364136223846793005 + token * 2654435761 + 1442695040888963407) & MASK


def seed_of(adapter: bytes) -> int:
    """What stands before position 0; 0 for the base model."""
    return int.from_bytes(adapter[:7], "little")


class FakeDevice:
    """Slots for adapters, and the orders for them that wait to be done. Contents are digests; None while nothing is there."""

    def __init__(self, in_flight: Callable[[], set[int]] = set) -> None:
        self.contents: dict[int, bytes | None] = {}
        self.orders: deque[tuple[int, bytes]] = deque()
        self.cleared: list[int] = []
        self.in_flight = in_flight

    def install(self, slot: int, digest: bytes) -> None:
        self._overwrite(slot)
        self.orders.append((slot, digest))

    def clear(self, slot: int) -> None:
        self._overwrite(slot)
        self.cleared.append(slot)

    def _overwrite(self, slot: int) -> None:
        assert slot not in self.in_flight(), f"adapter slot {slot} changes while a step in flight names it"
        assert all(slot != other for other, _ in self.orders), f"adapter slot {slot} changes while it is being loaded"
        self.contents[slot] = None

    def done(self, number: int = 0) -> int:
        """One of the orders has been carried out; its slot."""
        slot, digest = self.orders[number]
        del self.orders[number]
        self.contents[slot] = digest
        return slot

    def failed(self, number: int = 0) -> int:
        """One of the orders could not be."""
        slot, _ = self.orders[number]
        del self.orders[number]
        return slot


def _draw(kv: Sequence[int], sampling: Sampling, choice: int, output: int, vocab: int, eos: Sequence[int]) -> int:
    token = (hash((*kv, sampling.seed, choice, output)) & MASK) % vocab
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}
    while output < sampling.min_tokens and token in stops:
        token = (token + 1) % vocab
    return token


def alone(
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    choice: int = 0,
    given: Sequence[int] = (),
    vocab: int,
    eos: Sequence[int] = (),
    limit: int,
    adapter: bytes = b"",
) -> list[int]:
    """All outputs of a choice that runs by itself, those given included; `limit` is the longest sequence, prompt included."""
    tokens, kv = [*prompt, *given], [seed_of(adapter)]
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}
    for token in tokens:
        kv.append(_mix(kv[-1], token))
    while True:
        outputs = len(tokens) - len(prompt)
        stopped = outputs > sampling.min_tokens and tokens[-1] in stops
        if outputs and (stopped or outputs >= sampling.max_tokens or len(tokens) >= limit):
            return tokens[len(prompt) :]
        tokens.append(_draw(kv[1:], sampling, choice, outputs, vocab, eos))
        kv.append(_mix(kv[-1], tokens[-1]))


def scored(prompt: Sequence[int], adapter: bytes = b"") -> list[TokenLogprobs]:
    """The rows that a prompt must get: one for each of its tokens but the first."""
    kv, rows = seed_of(adapter), []
    for before, token in pairwise(prompt):
        kv = _mix(kv, before)
        rows.append(_row(kv, token))
    return rows


def _row(kv: int, token: int) -> TokenLogprobs:
    return TokenLogprobs(sampled=-float(hash((kv, token)) & 0xFFFF))


@dataclass(kw_only=True, slots=True)
class _Slot:
    tokens: dict[int, int]  # by position
    start: SlotStart
    table: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class FakePending:
    """A step that has run; its result is given when asked for."""

    executor: "FakeExecutor"
    plan: StepPlan
    outcome: StepResult

    def result(self) -> StepResult:
        self.executor.retired(self.plan.step)
        return self.outcome


class FakeExecutor:
    """Runs each plan at once, and holds its blocks and slots for named until the result has been taken.

    `broken_rows` makes the next samples of these slots fail, `broken_prompts` the next rows of their prompts.
    """

    def __init__(
        self, *, num_blocks: int, slots: int, vocab_size: int, eos: Sequence[int] = (), depth: int = 0
    ) -> None:
        self.depth = depth
        self.broken_rows: set[int] = set()
        self.broken_prompts: set[int] = set()
        self.plans: list[StepPlan] = []
        self._vocab = vocab_size
        self._eos = eos
        self._count = slots
        self._kv: list[list[int | None]] = [[None] * BLOCK for _ in range(num_blocks)]
        self._slots: dict[int, _Slot] = {}
        self._named: dict[int, tuple[set[int], set[int]]] = {}  # step -> blocks, slots
        self._adapters: dict[int, set[int]] = {}  # step -> adapter slots
        self.device = FakeDevice(self.adapters_in_flight)
        self.most_adapters = 0  # different ones in a step, so far

    def execute(self, plan: StepPlan) -> FakePending:
        self.plans.append(plan)
        self._start(plan)
        for slot, first, blocks in plan.tables:
            table = self._slots[slot].table
            assert first <= len(table), f"slot {slot}'s table would have a gap before entry {first}"
            table[first : first + len(blocks)] = blocks
        for block, content in [(copy.target, list(self._kv[copy.source])) for copy in plan.copies]:
            self._kv[block] = content
        self._compute(plan)
        adapters = {chunk.adapter for chunk in plan.chunks} - {-1}
        self.most_adapters = max(self.most_adapters, len(adapters))
        self._adapters[plan.step] = adapters
        tokens = [self._sample(plan.chunks[row.chunk], row) for row in plan.samples]
        self._named[plan.step] = (set(self._blocks(plan)), set(self._touched(plan)))
        return FakePending(executor=self, plan=plan, outcome=self._result(plan, tokens))

    def _start(self, plan: StepPlan) -> None:
        busy = self.slots_in_flight()
        for start in plan.starts:
            assert 0 <= start.slot < self._count
            assert start.slot not in busy, f"slot {start.slot} is started while a step in flight names it"
            self._slots[start.slot] = _Slot(tokens=dict(enumerate(start.tokens)), start=start)

    def _compute(self, plan: StepPlan) -> None:
        slots = [chunk.slot for chunk in plan.chunks]
        assert len(set(slots)) == len(slots), "two chunks of one slot"
        written: set[tuple[int, int]] = set()
        for slot, start, length, adapter in plan.chunks:
            assert length > 0
            state = self._slots[slot]
            for position in range(start, start + length):
                before = self._read(state, position - 1) if position else seed_of(self._adapter(adapter))
                place = self._place(state, position)
                assert place not in written, f"two slots write {place} in one step"
                written.add(place)
                self._kv[place[0]][place[1]] = _mix(before, state.tokens[position])

    def _adapter(self, slot: int) -> bytes:
        if slot < 0:
            return b""
        digest = self.device.contents[slot]
        assert digest is not None, f"a step names adapter slot {slot}, where nothing is"
        return digest

    @staticmethod
    def _place(state: _Slot, position: int) -> tuple[int, int]:
        return state.table[position // BLOCK], position % BLOCK

    def _read(self, state: _Slot, position: int) -> int:
        block, offset = self._place(state, position)
        value = self._kv[block][offset]
        assert value is not None, f"block {block} is read at {offset}, where nothing was written"
        return value

    def _sample(self, chunk: Chunk, row: SampleRow) -> int:
        """Through the row's own table, which must hold the same as the chunk's."""
        state = self._slots[row.slot]
        assert row.position == chunk.start + chunk.length, "a sample that is not of the chunk's last position"
        kv = [self._read(state, position) for position in range(row.position)]
        start = state.start
        output = row.position - start.prompt_len
        token = _draw(kv, start.sampling, start.choice_index, output, self._vocab, self._eos)
        assert row.position not in state.tokens, "a token that is known already is sampled again"
        state.tokens[row.position] = token
        return token

    def _result(self, plan: StepPlan, tokens: list[int]) -> StepResult:
        wanted = [self._slots[row.slot].start.sampling.logprobs for row in plan.samples]
        errors = [NOT_FINITE if row.slot in self.broken_rows else None for row in plan.samples]
        self.broken_rows -= {row.slot for row in plan.samples}
        logprobs = [None if count is None else TokenLogprobs(sampled=-1.0) for count in wanted]
        prompts = [self._score(plan.chunks[job.chunk], job) for job in plan.prompts]
        return StepResult(tokens=tokens, logprobs=logprobs, errors=errors, prompts=prompts)

    def _score(self, chunk: Chunk, job: PromptRows) -> tuple[TokenLogprobs, ...] | RowError:
        assert job.length > 0
        assert chunk.start < job.first, "a row of a prompt whose position before is not computed"
        assert job.first + job.length <= chunk.start + chunk.length + 1
        if chunk.slot in self.broken_prompts:
            self.broken_prompts.discard(chunk.slot)
            return NOT_FINITE
        state = self._slots[chunk.slot]
        assert state.start.sampling.prompt_logprobs is not None
        positions = range(job.first, job.first + job.length)
        assert positions[-1] < state.start.prompt_len
        return tuple(_row(self._read(state, at - 1), state.tokens[at]) for at in positions)

    def _blocks(self, plan: StepPlan) -> Iterator[int]:
        for slot in self._touched(plan):
            yield from self._slots[slot].table
        for copy in plan.copies:
            yield from copy

    @staticmethod
    def _touched(plan: StepPlan) -> list[int]:
        return [chunk.slot for chunk in plan.chunks] + [row.slot for row in plan.samples]

    def retired(self, step: int) -> None:
        """The step's result has been taken."""
        self._named.pop(step, None)
        self._adapters.pop(step, None)

    def adapters_in_flight(self) -> set[int]:
        """Adapter slots that steps name whose result has not been taken."""
        return {slot for slots in self._adapters.values() for slot in slots}

    def blocks_in_flight(self) -> set[int]:
        """Blocks that steps name whose result has not been taken."""
        return {block for blocks, _ in self._named.values() for block in blocks}

    def slots_in_flight(self) -> set[int]:
        """Slots that steps name whose result has not been taken."""
        return {slot for _, slots in self._named.values() for slot in slots}
