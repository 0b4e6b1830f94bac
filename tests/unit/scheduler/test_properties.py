"""Whatever arrives, forks, ends early or is preempted: every choice ends once, with the tokens it would have had alone."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.types import AbortReason, FinishReason, Tenant
from tests.fakes.executor import scored
from tests.unit.scheduler.rig import Key, Rig

TENANTS = (
    Tenant(id="a", salt=b"a"),
    Tenant(id="b", weight=3.0, salt=b"b"),
    Tenant(id="c", salt=b"c", top_class=1),
    Tenant(id="d", salt=b"a", top_class=2),
)
ADAPTERS = tuple(bytes([number]) * 32 for number in range(1, 6))
STEMS = tuple(tuple((7 * stem + 3 * position) % 48 for position in range(80)) for stem in range(3))


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Prompts that share beginnings, of lengths around whole blocks."""
    stem = draw(st.sampled_from(STEMS))
    length = draw(st.one_of(st.integers(1, 40), st.sampled_from([15, 16, 17, 31, 32, 33, 48, 64])))
    own = draw(st.lists(st.integers(0, 48), max_size=4))
    return (*stem[:length], *own)[:68]


class SchedulerMachine(RuleBasedStateMachine):
    """Requests of several tenants on two streams, on the base model and more adapters than there are slots for, against a tiny pool."""

    rig: Rig

    @initialize(
        depth=st.integers(0, 1),
        num_blocks=st.integers(8, 20),
        max_running=st.integers(2, 6),
        step_tokens=st.sampled_from([3, 7, 16, 40, 200]),
        max_waiting=st.integers(2, 12),
        watermark=st.sampled_from([0.0, 0.1]),
        prefix_cache=st.booleans(),
        target_wait_s=st.sampled_from([0.0, 0.05, 10.0]),
        max_preemptions=st.integers(0, 3),
        max_adapters=st.integers(0, 3),
        adapter_wait_s=st.sampled_from([0.0, 0.1, 5.0]),
        adapter_grace_s=st.sampled_from([0.0, 0.3, 5.0]),
        adapter_slice_s=st.sampled_from([0.0, 0.1]),
    )
    def start(self, **settings: object) -> None:
        self.rig = Rig(max_model_len=120, max_waiting_per_tenant=8, starve_s=0.5, **settings)  # type: ignore[arg-type]
        self.aborted: set[Key] = set()

    @rule(
        prompt=prompts(),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        tenant=st.sampled_from(TENANTS),
        stream=st.integers(1, 2),
        max_tokens=st.integers(1, 30),
        min_tokens=st.integers(0, 3),
        ignore_eos=st.booleans(),
        seed=st.integers(0, 3),
        remaining_ms=st.sampled_from([None, None, None, 0, 40, 300]),
        logprobs=st.sampled_from([None, 0]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        adapter=st.sampled_from([b"", *ADAPTERS]),
    )
    def submit(self, prompt: tuple[int, ...], stream: int, **options: object) -> None:
        if not self.rig.config.max_adapters:
            options["adapter"] = b""
        if stream in self.rig.dropped:
            stream = 3
        options["min_tokens"] = min(options["min_tokens"], options["max_tokens"])  # type: ignore[type-var]
        self.rig.submit(prompt, stream=stream, stop_token_ids=(5,), **options)  # type: ignore[arg-type]

    @rule(
        prompt=prompts(),
        tenant=st.sampled_from(TENANTS),
        lengths=st.lists(st.integers(0, 12), min_size=1, max_size=3),
        max_tokens=st.integers(1, 20),
    )
    def resume(self, prompt: tuple[int, ...], tenant: Tenant, lengths: list[int], max_tokens: int) -> None:
        """Choices that another worker left off somewhere."""
        probe = self.rig.request(prompt, n=len(lengths), max_tokens=max_tokens, ignore_eos=False)
        given = []
        for choice, length in zip(probe.choices, lengths, strict=True):
            self.rig.requests[0, choice.handle] = (probe, choice)
            given.append(self.rig.expected((0, choice.handle))[:length])
            del self.rig.requests[0, choice.handle]
        self.rig.submit(prompt, outputs=given, tenant=tenant, max_tokens=max_tokens, ignore_eos=False, stream=4)

    def _live(self) -> list[Key]:
        ended = self.rig.finished.keys() | self.rig.rejected.keys()
        return [key for key in self.rig.requests if key not in ended and key[0] not in self.rig.dropped]

    @precondition(lambda self: self._live())
    @rule(data=st.data(), reason=st.sampled_from(list(AbortReason)))
    def abort(self, data: st.DataObject, reason: AbortReason) -> None:
        keys = data.draw(st.lists(st.sampled_from(self._live()), min_size=1, max_size=3, unique=True))
        self.aborted |= set(keys)
        self.rig.abort(keys, reason)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.2]), count=st.sampled_from([1, 1, 2, 8]))
    def step(self, seconds: float, count: int) -> None:
        for _ in range(count):
            busy = self.rig.step(seconds)
            if not busy:
                assert not self._live(), "nothing is planned or in flight, and something lives"

    @precondition(lambda self: self.rig.device.orders)
    @rule(data=st.data(), breaks=st.sampled_from([False, False, False, True]))
    def load(self, data: st.DataObject, breaks: bool) -> None:
        """The loader is done with one, in whatever order."""
        number = data.draw(st.integers(0, len(self.rig.device.orders) - 1))
        if breaks:
            self.rig.fail_load(number)
        else:
            self.rig.load(number)

    @rule(adapter=st.sampled_from(ADAPTERS), order=st.sampled_from(["forget", "remember", "pin", "unpin"]))
    def order(self, adapter: bytes, order: str) -> None:
        """From outside. Of two slots one may be pinned."""
        scheduler = self.rig.scheduler
        if order == "forget":
            self.rig.take(scheduler.forget_adapter(adapter))
        elif order == "remember":
            scheduler.remember_adapter(adapter)
        elif adapter == ADAPTERS[0] and self.rig.config.max_adapters > 1:
            scheduler.pin_adapter(adapter, order == "pin")

    @rule()
    def flush(self) -> None:
        self.rig.scheduler.flush_cache()
        self.rig.take(self.rig.scheduler.take_output())

    @precondition(lambda self: self.rig.pending)
    @rule()
    def break_a_row(self) -> None:
        plan = self.rig.pending[-1][0]
        self.rig.executor.broken_rows |= {row.slot for row in plan.samples[:1]}

    @precondition(lambda self: self.rig.executor.plans and self.rig.executor.plans[-1].chunks)
    @rule(chance=st.integers(0, 5))
    def break_a_prompt(self, chance: int) -> None:
        if chance == 0:
            self.rig.executor.broken_prompts |= {self.rig.executor.plans[-1].chunks[-1].slot}

    @precondition(lambda self: self.rig.pending)
    @rule(chance=st.integers(0, 5))
    def fail(self, chance: int) -> None:
        if chance == 0:
            self.rig.fail("the device is gone")

    @rule(chance=st.integers(0, 9))
    def drop(self, chance: int) -> None:
        if chance == 0:
            self.rig.drop_stream(2)

    @invariant()
    def tokens_are_those_of_a_run_alone(self) -> None:
        if not hasattr(self, "rig"):
            return
        for key, tokens in self.rig.tokens.items():
            finished = self.rig.finished.get(key)
            if finished is None:
                assert tokens == self.rig.expected(key)[: len(tokens)]
        for seq, rows in self.rig.prompts.items():
            request = next(request for request, _ in self.rig.requests.values() if request.seq == seq)
            assert rows == scored(request.prompt_tokens, request.adapter_digest)[: len(rows)]

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run()
        for key in self.rig.requests:
            if key[0] in self.rig.dropped or key in self.rig.rejected:
                continue
            finished = self.rig.finished[key]
            expected = self.rig.expected(key)
            if finished.reason in (FinishReason.STOP, FinishReason.LENGTH) and key not in self.aborted:
                self.rig.assert_as_alone([key])
                self.rig.assert_scored(key)
            else:
                assert self.rig.tokens[key] == expected[: len(self.rig.tokens[key])]
        self.rig.assert_whole()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("module", ["worker.scheduler.scheduler", "worker.kvcache.cache", "worker.sequence"])
def test_scheduling_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(name.split('.')[0] in ('torch', 'triton', 'numpy') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
