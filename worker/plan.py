"""All that the scheduler and the runner both know: what one step computes, and what came of it. Imports no torch.

A *slot* is a row of the runner's persistent state (token buffer, block table, sampling state). The scheduler hands slots out; the runner
only obeys. Token values of decode steps never travel in a plan: the runner wrote them into the slot's token buffer when it sampled them,
so that a step can be planned before the step ahead of it has retired (depth 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shared.types import Sampling, TokenLogprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotStart:
    """A sequence takes a slot in this step; whatever the slot held before is forgotten.

    `tokens` are all tokens known so far (prompt, given or already generated outputs), written from position 0.
    `prompt_len` is the original prompt's length: the output position of the token at position p is p - prompt_len.
    """

    slot: int
    tokens: Sequence[int]
    prompt_len: int
    sampling: Sampling
    choice_index: int


class TableWrite(NamedTuple):
    """Blocks that the slot's block table gets from entry `first` on. Block b holds KV of 16 positions in every layer."""

    slot: int
    first: int
    blocks: tuple[int, ...]


class BlockCopy(NamedTuple):
    """Copy a block's KV, in every layer, before anything of this step is written."""

    source: int
    target: int


class Chunk(NamedTuple):
    """Compute positions start .. start+length-1 of the slot's token buffer. Chunks of a plan name distinct slots.

    `adapter` is the adapter slot (kernels.lora.slots.AdapterSlots) that the positions run with, -1 for the base model alone. It may
    change from step to step, as long as the same adapter lies there.
    """

    slot: int
    start: int
    length: int
    adapter: int = -1


class SampleRow(NamedTuple):
    """Sample from the logits of chunk number `chunk`'s last position, with `slot`'s sampling state; the token goes to `position` there.

    Several rows may name one chunk: forked choices draw their first token from one prefill.
    """

    chunk: int
    slot: int
    position: int


class PromptRows(NamedTuple):
    """Log-probabilities of the prompt's tokens at positions first .. first+length-1, each from the position before it in that chunk."""

    chunk: int
    first: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """One step. Order of effects: starts, tables, copies, then compute all chunks (write KV, attend), then sample and score prompts."""

    step: int
    starts: tuple[SlotStart, ...] = ()
    tables: tuple[TableWrite, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    samples: tuple[SampleRow, ...] = ()
    prompts: tuple[PromptRows, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RowError:
    """Why one row could not be had. `param` names the option at fault where the request asked for what cannot be."""

    message: str
    param: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What a step's `samples` gave, row by row.

    `logprobs[i]` is None where the row's slot did not ask. `errors[i]` is set where row i alone could not be sampled (logits that are not
    finite, or every token is forbidden); its token is then meaningless. `prompts` answers the plan's `prompts`, one by one: a row a
    position, or an error where that could not be worked out.
    """

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    errors: Sequence[RowError | None]
    prompts: Sequence[tuple[TokenLogprobs, ...] | RowError] = ()


class Pending(Protocol):
    """A step that may still be running."""

    def result(self) -> StepResult:
        """Wait for the step and take its result. Raises whatever made the whole step fail."""


class Executor(Protocol):
    """Runs plans, in order."""

    @property
    def depth(self) -> int:
        """How many steps may be in flight when the next is planned: 0 (wait for each) or 1 (one ahead)."""

    def execute(self, plan: StepPlan) -> Pending:
        """Start a step. At depth 0 it may run to its end here."""
