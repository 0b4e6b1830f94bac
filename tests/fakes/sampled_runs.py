"""Runs of requests with any sampling options through a real engine and a tiny model, without a wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.lora.slots import AdapterSlots
from kernels.lora.weights import LoraWeights
from shared.types import OPEN_TENANT, AbortReason, Choice, Finished, Rejected, Sampling, TokenLogprobs, TokenRequest
from worker.engine.engine import Engine
from worker.events import StepOutput
from worker.execution.build import Runner, RunnerConfig
from worker.plan import Executor
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler

SLOTS, MODEL_LEN = 72, 400
RUNNER = RunnerConfig(
    dtype="float32", max_running=SLOTS, step_tokens=2048, max_model_len=MODEL_LEN, kv_bytes=32 << 20, threads=2, depth=0
)


@dataclass(kw_only=True)
class Asked:
    """A request and what came of it: tokens and log-probabilities by choice, the prompt's rows."""

    request: TokenRequest
    outputs: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    prompt: list[TokenLogprobs] = field(default_factory=list)
    finished: dict[int, Finished] = field(default_factory=dict)
    rejected: Rejected | None = None

    @property
    def tokens(self) -> list[int]:
        """The first choice's."""
        return self.outputs[0]

    @property
    def end(self) -> Finished:
        """The first choice's."""
        return self.finished[0]


class AtOnce:
    """A SlotLoader that has installed what was ordered before anybody asks. `held` are the adapters by digest."""

    def __init__(self, slots: AdapterSlots, held: Mapping[bytes, LoraWeights]):
        self._slots, self._held = slots, held
        self.loaded: list[int] = []  # slots of which the scheduler has not been told

    def install(self, slot: int, digest: bytes) -> None:
        self._slots.install(slot, self._held[digest])
        self.loaded.append(slot)

    def clear(self, slot: int) -> None:
        self._slots.clear(slot)


class Runs:
    """One engine. `changes` go into the scheduler's configuration; `blocks` makes its pool smaller; `adapters` are those that requests may
    name.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        executor: Executor | None = None,
        blocks: int = 0,
        adapters: Mapping[bytes, LoraWeights] | None = None,
        **changes: Any,
    ):
        fields: dict[str, Any] = {
            "max_running": SLOTS,
            "step_tokens": 2048,
            "max_model_len": MODEL_LEN,
            "vocab_size": runner.vocab_size,
            "model_revision": "tiny",
            "eos_token_ids": (2,),
            "max_waiting": 1000,
            "max_waiting_per_tenant": 1000,
            "watermark": 0.0,
            "depth": runner.depth,
        }
        self._loader = None
        if adapters is not None and runner.adapters is not None:
            self._loader = AtOnce(runner.adapters, adapters)
            fields["max_adapters"] = runner.adapters.slots
        config = SchedulerConfig(**(fields | changes))
        self.scheduler = Scheduler(config, blocks or runner.num_blocks, loader=self._loader)
        self.engine = Engine(self.scheduler, executor or runner)
        self._by_handle: dict[int, tuple[Asked, int]] = {}
        self._by_seq: dict[int, Asked] = {}

    def ask(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        n: int = 1,
        given: Sequence[Sequence[int]] | None = None,
        adapter: bytes = b"",
    ) -> Asked:
        """Submit it; `given` are outputs of a resumed request's choices, `adapter` the digest of one."""
        first, seq = len(self._by_handle) + 1, len(self._by_seq) + 1
        outputs = given if given is not None else [()] * n
        choices = tuple(Choice(handle=first + i, index=i, output_tokens=tuple(out)) for i, out in enumerate(outputs))
        request = TokenRequest(
            seq=seq,
            request_id=str(seq),
            tenant=OPEN_TENANT,
            prompt_tokens=tuple(prompt),
            choices=choices,
            sampling=sampling,
            resumed=given is not None,
            adapter_digest=adapter,
        )
        asked = Asked(request=request, outputs=[[] for _ in choices], logprobs=[[] for _ in choices])
        self._by_seq[seq] = asked
        self._by_handle |= {choice.handle: (asked, choice.index) for choice in choices}
        self._take(self.engine.submit(0, request))
        return asked

    def abort(self, asked: Asked, index: int, reason: AbortReason = AbortReason.CLIENT) -> None:
        """One choice's caller has left, or found its stop string."""
        self._take(self.engine.abort(0, [asked.request.choices[index].handle], reason))

    def step(self, count: int = 1) -> None:
        """So many engine steps."""
        for _ in range(count):
            while self._loader is not None and self._loader.loaded:
                self._take(self.engine.adapter_loaded(self._loader.loaded.pop(0)))
            self._take(self.engine.step())

    def finish(self) -> None:
        """To the end of all work, then check that all was given back."""
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()

    def _take(self, output: StepOutput) -> None:
        for _, delta in output.deltas:
            asked, index = self._by_handle[delta.handle]
            asked.outputs[index] += delta.tokens
            asked.logprobs[index] += delta.logprobs
            if delta.prompt is not None:
                assert delta.prompt.first == len(asked.prompt) + 1
                assert not any(asked.outputs), "the prompt's rows come before every token"
                asked.prompt += delta.prompt.rows
        for _, finished in output.finished:
            asked, index = self._by_handle[finished.handle]
            asked.finished[index] = finished
        for _, rejected in output.rejected:
            self._by_seq[rejected.seq].rejected = rejected
