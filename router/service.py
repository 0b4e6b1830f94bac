"""What the edges ask of the router's inside. Edges translate; everything else stands behind these Protocols."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.adapters.report import AdapterOperator
from router.request import GenerateRequest, Logprobs, Piece, Prompt, Usage
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.rates import Rates


class Generation(Protocol):
    """A request that was admitted and runs.

    Iterate it once. Each item is what one flush gives, over all choices, in order. The iteration ends after every choice has ended, or
    raises an OctavoError. Closing it early (`aclose`, idempotent, also when never iterated) aborts the work at once.
    """

    @property
    def id(self) -> str:
        """Unique, whatever id the caller chose."""

    @property
    def model(self) -> str:
        """The served name, or the adapter's as the caller wrote it."""

    @property
    def base(self) -> str:
        """The served name of the model below."""

    @property
    def seed(self) -> int:
        """The seed in force, the caller's or one drawn here."""

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """The prompt's token ids."""

    @property
    def prompt_logprobs(self) -> Sequence[Logprobs | None]:
        """One entry a token of the prompt, None for the first; empty where none were asked. Whole once the first piece with a token is
        there, or the iteration has ended."""

    @property
    def usage(self) -> Usage:
        """Counts so far; exact once the iteration has ended."""

    @property
    def rates(self) -> Rates | None:
        """The tenant's rates when this was admitted; None where it has none."""

    @property
    def resumed(self) -> str:
        """ "inexact" once it has gone on at a worker that works with other numbers than the one that began it; empty otherwise."""

    def __aiter__(self) -> AsyncIterator[tuple[Piece, ...]]:
        """The pieces, flush by flush."""

    async def aclose(self) -> None:
        """Abort what still runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """A model that some live worker serves. `created` is in Unix seconds; sequences end at `eos_token_ids`.

    An adapter's `parent` is the served name of its base, `created` when it was loaded (0: not yet).
    """

    id: str
    created: int
    max_model_len: int
    workers: int
    eos_token_ids: tuple[int, ...] = ()
    parent: str = ""


class Service(Protocol):
    """The router's inside, as both edges see it. Every method raises OctavoErrors only.

    A name that the caller does not see is answered as one that does not exist.
    """

    def waiting(self, caller: Caller) -> int:
        """How many requests of the caller's tenant no worker has taken yet."""

    def check_room(self, caller: Caller, *, ahead: int = 0) -> None:
        """Raises Overloaded or RateLimited where a request of the caller's would find every queue full behind `ahead` others of its tenant,
        or be over a limit, whatever it asks for: before it is read."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Validate against the model, tokenize, admit, dispatch. With an adapter it returns at the first token."""

    async def tokenize(
        self,
        model: str,
        prompt: Prompt,
        add_special_tokens: bool | None = None,
        *,
        param: str = "prompt",
        caller: Caller = OPEN_CALLER,
    ) -> Sequence[int]:
        """Token ids of a prompt; None leaves special tokens to the prompt's kind (text: yes, chat: the template's own).

        Errors about the prompt name `param`.
        """

    async def detokenize(
        self, model: str, tokens: Sequence[int], skip_special_tokens: bool = False, *, caller: Caller = OPEN_CALLER
    ) -> str:
        """The text of token ids."""

    def models(self, caller: Caller = OPEN_CALLER) -> Sequence[ModelCard]:
        """Every served model that the caller sees, by name, and after each its adapters."""

    def model(self, name: str, caller: Caller = OPEN_CALLER) -> ModelCard:
        """Of `models` the one that a request with this name would get; empty: the only one that is served."""

    @property
    def operator(self) -> AdapterOperator:
        """Changes and lists adapters."""

    def ready(self) -> bool:
        """Whether a request could be served now: some worker is connected and takes work."""
