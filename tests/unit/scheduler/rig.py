"""A scheduler with a fake executor and a clock that only the test moves. Every call is followed by all integrity checks."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from shared.types import (
    OPEN_TENANT,
    AbortReason,
    Choice,
    Finished,
    FinishReason,
    PromptLogprobs,
    RejectCode,
    Rejected,
    Sampling,
    Tenant,
    TokenLogprobs,
    TokenRequest,
)
from tests.fakes.executor import FakeExecutor, FakePending, alone, scored
from worker.events import StepOutput
from worker.plan import StepPlan
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler
from worker.scheduler.steptime import StepTimes

VOCAB = 50
EOS = (49,)
Key = tuple[int, int]  # stream, handle


def config(**changes: Any) -> SchedulerConfig:
    fields: dict[str, Any] = {
        "max_running": 4,
        "step_tokens": 64,
        "max_model_len": 256,
        "vocab_size": VOCAB,
        "model_revision": "r",
        "eos_token_ids": EOS,
        "max_waiting": 64,
        "max_waiting_per_tenant": 64,
        "watermark": 0.0,
    }
    return SchedulerConfig(**(fields | changes))


def sampling(**changes: Any) -> Sampling:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    return Sampling(**(fields | changes))


class Rig:
    """Drives as the engine does. `tokens`, `finished` and `rejected` are what came out."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        depth: int = 0,
        check: bool = True,
        times: StepTimes | None = None,
        **changes: Any,
    ) -> None:
        self.config = config(depth=depth, **changes)
        self.executor = FakeExecutor(
            num_blocks=num_blocks, slots=self.config.max_running, vocab_size=VOCAB, eos=EOS, depth=depth
        )
        self.device = self.executor.device
        self.scheduler = Scheduler(self.config, num_blocks, started_at=0.0, times=times, loader=self.device)
        self.num_blocks = num_blocks
        self.depth = depth
        self.now = 0.0
        self.pending: deque[tuple[StepPlan, FakePending]] = deque()
        self.requests: dict[Key, tuple[TokenRequest, Choice]] = {}
        self.by_seq: dict[tuple[int, int], list[Key]] = {}
        self.tokens: dict[Key, list[int]] = {}
        self.prompts: dict[int, list[TokenLogprobs]] = {}  # by the request's seq
        self.finished: dict[Key, Finished] = {}
        self.rejected: dict[Key, Rejected] = {}
        self.known: set[bytes] = set()  # published hashes as a router would have them
        self.dropped: set[int] = set()
        self._check = check
        self._seq = 0
        self._handle = 0

    # ---- what a router does

    def request(
        self,
        prompt: Sequence[int],
        *,
        n: int = 1,
        outputs: Sequence[Sequence[int]] | None = None,
        tenant: Tenant = OPEN_TENANT,
        remaining_ms: int | None = None,
        adapter: bytes = b"",
        **options: Any,
    ) -> TokenRequest:
        self._seq += 1
        given = outputs if outputs is not None else [()] * n
        choices = []
        for index, tokens in enumerate(given):
            self._handle += 1
            choices.append(Choice(handle=self._handle, index=index, output_tokens=tuple(tokens)))
        return TokenRequest(
            seq=self._seq,
            request_id=f"r{self._seq}",
            tenant=tenant,
            prompt_tokens=tuple(prompt),
            choices=tuple(choices),
            sampling=sampling(**options),
            resumed=outputs is not None,
            remaining_ms=remaining_ms,
            adapter_digest=adapter,
        )

    def submit(self, prompt: Sequence[int], *, stream: int = 1, **options: Any) -> list[Key]:
        return self.send(self.request(prompt, **options), stream=stream)

    def send(self, request: TokenRequest, *, stream: int = 1) -> list[Key]:
        keys = [(stream, choice.handle) for choice in request.choices]
        self.by_seq[stream, request.seq] = keys
        for key, choice in zip(keys, request.choices, strict=True):
            self.requests[key] = (request, choice)
            self.tokens[key] = []
        self.take(self.scheduler.submit(stream, request, self.now))
        return keys

    def abort(self, keys: Sequence[Key], reason: AbortReason = AbortReason.CLIENT) -> None:
        for stream in {stream for stream, _ in keys}:
            handles = [handle for own, handle in keys if own == stream]
            self.take(self.scheduler.abort(stream, handles, reason, self.now))

    def drop_stream(self, stream: int) -> None:
        self.dropped.add(stream)
        self.scheduler.drop_stream(stream, self.now)
        self.take(self.scheduler.take_output())

    # ---- what the engine does

    def step(self, seconds: float = 0.01) -> bool:
        """Plan and start a step, and retire the oldest beyond the depth, or any if none could be planned. False: nothing was to do."""
        self.now += seconds
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self.pending.append((plan, self.executor.execute(plan)))
        self.take(self.scheduler.take_output())
        if len(self.pending) > (self.depth if plan is not None else 0):
            self.retire()
            return True
        return plan is not None or bool(self.device.orders)

    def load(self, number: int = 0) -> None:
        """An adapter has come into its slot."""
        self.take(self.scheduler.adapter_loaded(self.device.done(number), self.now))

    def fail_load(self, number: int = 0) -> None:
        """An adapter cannot be had."""
        slot = self.device.failed(number)
        self.take(self.scheduler.adapter_failed(slot, RejectCode.ADAPTER_INVALID, "broken", self.now))

    def retire(self) -> None:
        plan, pending = self.pending.popleft()
        self.take(self.scheduler.apply(plan, pending.result(), self.now))

    def fail(self, message: str) -> None:
        """The oldest step in flight fails."""
        plan, pending = self.pending.popleft()
        pending.result()
        self.take(self.scheduler.fail(plan, message, self.now))

    def run(self, most: int = 5000) -> None:
        """To the end of all work."""
        for _ in range(most):
            while self.device.orders:
                self.load()
            if not self.step():
                return
        raise AssertionError(f"not done after {most} steps")

    # ---- what came out

    def take(self, output: StepOutput) -> None:
        for stream, delta in output.deltas:
            key = (stream, delta.handle)
            assert stream not in self.dropped
            assert key not in self.finished, "tokens after the end"
            self.tokens[key] += delta.tokens
            if delta.prompt is not None:
                self._take_prompt(key, delta.prompt)
        for stream, finished in output.finished:
            key = (stream, finished.handle)
            assert stream not in self.dropped
            assert key not in self.finished, "two ends"
            assert key not in self.rejected, "an end after a refusal"
            self.finished[key] = finished
        for stream, rejected in output.rejected:
            for key in self.by_seq[stream, rejected.seq]:
                assert key not in self.finished
                assert key not in self.rejected, "two refusals"
                self.rejected[key] = rejected
        assert not self.known & set(output.kv.added), "added twice"
        assert set(output.kv.removed) <= self.known, "removed without having been added"
        assert not set(output.kv.added) & set(output.kv.removed)
        self.known = (self.known | set(output.kv.added)) - set(output.kv.removed)
        if self._check:
            self.check()

    def _take_prompt(self, key: Key, prompt: PromptLogprobs) -> None:
        request = self.requests[key][0]
        told = self.prompts.setdefault(request.seq, [])
        assert prompt.first == len(told) + 1, "a gap in the prompt's rows, or one twice"
        assert not any(self.tokens[key[0], choice.handle] for choice in request.choices), "after the first token"
        told += prompt.rows

    def check(self) -> None:
        self.scheduler.check_integrity()
        reusable = set(self.scheduler.available_blocks()) & self.executor.blocks_in_flight()
        assert not reusable, f"blocks {sorted(reusable)} are available, and steps in flight name them"
        assert self.known == set(self.scheduler.published())
        assert self.executor.most_adapters <= self.config.max_adapters

    def expected(self, key: Key) -> list[int]:
        """What the choice gives when it runs alone, without the outputs it was given."""
        request, choice = self.requests[key]
        every = alone(
            request.prompt_tokens,
            request.sampling,
            choice=choice.index,
            given=choice.output_tokens,
            vocab=VOCAB,
            eos=EOS,
            limit=self.config.max_model_len,
            adapter=request.adapter_digest,
        )
        return every[len(choice.output_tokens) :]

    def assert_as_alone(self, keys: Sequence[Key]) -> None:
        """All have ended of themselves, with the tokens they would have had alone."""
        for key in keys:
            assert self.tokens[key] == self.expected(key)
            finished = self.finished[key]
            request, choice = self.requests[key]
            assert finished.reason in (FinishReason.STOP, FinishReason.LENGTH), finished
            assert finished.output_tokens == len(choice.output_tokens) + len(self.tokens[key])
            assert finished.prompt_tokens == len(request.prompt_tokens)

    def assert_scored(self, key: Key) -> None:
        """Its prompt has every row that it asked for, and none where it asked for none."""
        request = self.requests[key][0]
        asked = request.sampling.prompt_logprobs is not None and not request.resumed
        assert self.prompts.get(request.seq, []) == (
            scored(request.prompt_tokens, request.adapter_digest) if asked else []
        )

    def assert_whole(self) -> None:
        """Nothing runs or waits, and every block and slot is there."""
        stats = self.scheduler.stats(self.now)
        assert (stats.running, stats.waiting, stats.waiting_uncached_tokens, stats.context_tokens) == (0, 0, 0, 0)
        assert stats.free_blocks == self.num_blocks
        assert not stats.has_work
        assert len(self.scheduler._residents.slots._free) == self.config.max_running
        self.scheduler.check_integrity()
