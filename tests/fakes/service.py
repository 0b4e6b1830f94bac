"""A router's inside without workers: scripted words, and events by which a test holds or breaks any phase."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from router.adapters.report import AdapterAt, AdapterReport
from router.request import (
    ChatPrompt,
    Ended,
    GenerateRequest,
    Logprobs,
    Piece,
    Prompt,
    TextPrompt,
    TokenPrompt,
    TokenText,
    Usage,
)
from router.service import ModelCard
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.rates import Rates
from router.tenancy.records import Scope
from shared.errors import AlreadyExists, ModelNotFound, Overloaded
from shared.types import AdapterInfo, AdapterLevel

WORDS = ("Once", " upon", " a", " time", ",", " déjà", " vu", "!")
SEED = 1234

Flush = tuple[Piece, ...]


def _token(number: int, logprob: float) -> TokenText:
    return TokenText(token=number, logprob=logprob, text=WORDS[number % len(WORDS)].encode())


def _row(number: int, alternatives: int) -> Logprobs:
    top = tuple(_token(number + i, -0.5 - i) for i in range(alternatives))
    return Logprobs(sampled=_token(number, -0.5), top=top)


def _ending(request: GenerateRequest, position: int) -> Ended | None:
    limit = request.sampling.max_tokens
    if limit is not None and position + 1 == limit:
        return Ended(reason="length")
    if position + 1 == len(WORDS):
        return Ended(reason="stop", stop_token=2)
    return None


def words(request: GenerateRequest) -> list[Flush]:
    """One word a step for every choice, until max_tokens, a stop string (which must be a word), or the words' end."""
    flushes: list[Flush] = []
    for position, word in enumerate(WORDS):
        stopped = word if word in request.sampling.stop else None
        ended = Ended(reason="stop", stop_string=word) if stopped else _ending(request, position)
        wanted = request.sampling.logprobs
        rows = () if wanted is None or stopped else (_row(position, wanted),)
        text = "" if stopped else word
        flush = (Piece(index=i, text=text, tokens=(position,), logprobs=rows, ended=ended) for i in range(request.n))
        flushes.append(tuple(flush))
        if ended:
            break
    return flushes


def _prompt_alternatives(request: GenerateRequest) -> int | None:
    """As router.dispatch resolves it."""
    asked = request.sampling.prompt_logprobs
    return request.sampling.logprobs if asked is None and request.echo else asked


def _tokens(prompt: Prompt) -> Sequence[int]:
    match prompt:
        case TokenPrompt(tokens=tokens):
            return tokens
        case TextPrompt(text=text):
            return [ord(c) for c in text]
        case ChatPrompt(messages=messages):
            return [ord(c) for message in messages for c in message.content]


@dataclass(kw_only=True)
class FakeGeneration:
    """Implements router.service.Generation over a list of flushes; waits at `hold`, breaks at `failure`."""

    id: str
    model: str
    seed: int
    prompt_tokens: Sequence[int]
    flushes: Sequence[Flush]
    hold_at: int | None = None
    fail_at: int | None = None
    failure: Exception | None = None
    release: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    completed: int = 0
    finished: bool = False
    prompt_alternatives: int | None = None
    resumed: str = ""
    rates: Rates | None = None

    @property
    def base(self) -> str:
        return self.model

    @property
    def prompt_logprobs(self) -> Sequence[Logprobs | None]:
        """Of characters, each at minus its place; alternatives are the characters after it."""
        if self.prompt_alternatives is None or not self.completed:
            return ()
        return [None, *(self._prompt_row(i) for i in range(1, len(self.prompt_tokens)))]

    def _prompt_row(self, place: int) -> Logprobs:
        token = self.prompt_tokens[place]
        around = [
            TokenText(token=t, logprob=-float(place + t - token), text=chr(t).encode())
            for t in range(token, token + 21)
        ]
        return Logprobs(sampled=around[0], top=tuple(around[: self.prompt_alternatives]))

    @property
    def usage(self) -> Usage:
        cached = len(self.prompt_tokens) // 2
        return Usage(prompt_tokens=len(self.prompt_tokens), completion_tokens=self.completed, cached_tokens=cached)

    async def __aiter__(self) -> AsyncIterator[Flush]:
        for position, flush in enumerate(self.flushes):
            if position == self.hold_at:
                await self.release.wait()
            if position == self.fail_at and self.failure is not None:
                raise self.failure
            await asyncio.sleep(0)
            self.completed += sum(len(piece.tokens) for piece in flush)
            yield flush
        self.finished = True

    async def aclose(self) -> None:
        self.closed.set()


@dataclass
class FakeOperator:
    """Implements router.adapters.report.AdapterOperator: any name is loaded at one worker from any source."""

    loaded: dict[str, AdapterReport]

    def list(self, caller: Caller, *, model: str = "") -> Sequence[AdapterReport]:
        caller.require(Scope.ADAPTERS)
        return list(self.loaded.values())

    def get(self, caller: Caller, name: str, *, model: str = "") -> AdapterReport:
        caller.require(Scope.ADAPTERS)
        return self._known(name)

    async def load(
        self, caller: Caller, name: str, source: str, *, model: str = "", replace: bool = False, pin: bool = False
    ) -> AdapterReport:
        caller.require(Scope.ADAPTERS)
        if name in self.loaded and not replace:
            message = f"adapter {name!r} is loaded with another version: `replace` would put this one in its place"
            raise AlreadyExists(message, param="name")
        digest = source.encode().ljust(32)[:32]
        info = AdapterInfo(name=name, digest=digest, level=AdapterLevel.HOST, rank=8, bytes=100, source=source)
        self.loaded[name] = AdapterReport(
            name=name,
            model=model or "tiny",
            digest=digest,
            rank=8,
            bytes=100,
            pinned=pin,
            loaded_unix_ms=1_700_000_000_000,
            registered=True,
            source=source,
            workers=(AdapterAt(worker="w1", info=info), AdapterAt(worker="w2", info=None, error="it is away")),
        )
        return self.loaded[name]

    async def unload(self, caller: Caller, name: str, *, model: str = "") -> str:
        caller.require(Scope.ADAPTERS)
        self._known(name)
        del self.loaded[name]
        return name

    async def pin(self, caller: Caller, name: str, pinned: bool, *, model: str = "") -> AdapterReport:
        caller.require(Scope.ADMIN)
        self.loaded[name] = replace(self._known(name), pinned=pinned)
        return self.loaded[name]

    def _known(self, name: str) -> AdapterReport:
        if name not in self.loaded:
            raise ModelNotFound(f"there is no adapter {name!r}", param="name")
        return self.loaded[name]


@dataclass(kw_only=True)
class FakeService:
    """Implements router.service.Service. Every generation it made stays in `generations`, every request in `requests`.

    `admit`: cleared, generate() waits for it. `refuse`: generate() raises it, and `full` check_room(). `crowd` wait; there are `places` to
    wait in.
    `hold_at`/`fail_at`: the flush at which each new generation waits for its `release`, or raises `failure`.
    """

    script: Callable[[GenerateRequest], Sequence[Flush]] = words
    names: tuple[str, ...] = ("tiny",)
    is_ready: bool = True
    refuse: Exception | None = None
    full: Exception | None = None
    crowd: int = 0
    places: int = 1 << 30
    hold_at: int | None = None
    fail_at: int | None = None
    failure: Exception | None = None
    resumed: str = ""
    admit: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[GenerateRequest] = field(default_factory=list)
    adapters: dict[str, AdapterReport] = field(default_factory=dict)
    generations: list[FakeGeneration] = field(default_factory=list)
    ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.admit.set()

    def _resolve(self, model: str, caller: Caller) -> str:
        if model == "" and len(self.names) == 1:
            return self.names[0]
        if model not in self.names or not caller.sees_model(model):
            raise ModelNotFound(f"no model {model!r}", param="model")
        return model

    def waiting(self, caller: Caller) -> int:
        del caller
        return self.crowd

    def check_room(self, caller: Caller, *, ahead: int = 0) -> None:
        del caller
        if self.full is not None:
            raise self.full
        if ahead >= self.places:
            raise Overloaded(f"the queue is full: {ahead} requests are waiting")

    async def generate(self, request: GenerateRequest) -> FakeGeneration:
        self.requests.append(request)
        self.entered.set()
        model = self._resolve(request.model, request.caller)
        if self.refuse is not None:
            raise self.refuse
        try:
            await self.admit.wait()
        except asyncio.CancelledError:
            self.abandoned.set()
            raise
        generation = FakeGeneration(
            id=f"{next(self.ids):032x}",
            model=model,
            seed=SEED if request.sampling.seed is None else request.sampling.seed,
            prompt_tokens=_tokens(request.prompt)[-(request.truncate_prompt_tokens or 0) :],
            flushes=self.script(request),
            hold_at=self.hold_at,
            fail_at=self.fail_at,
            failure=self.failure,
            resumed=self.resumed,
            prompt_alternatives=_prompt_alternatives(request),
        )
        self.generations.append(generation)
        return generation

    async def tokenize(
        self,
        model: str,
        prompt: Prompt,
        add_special_tokens: bool | None = None,
        *,
        param: str = "prompt",
        caller: Caller = OPEN_CALLER,
    ) -> Sequence[int]:
        self._resolve(model, caller)
        special = isinstance(prompt, TextPrompt) if add_special_tokens is None else add_special_tokens
        return [*([1] if special else []), *_tokens(prompt)]

    async def detokenize(
        self, model: str, tokens: Sequence[int], skip_special_tokens: bool = False, *, caller: Caller = OPEN_CALLER
    ) -> str:
        self._resolve(model, caller)
        return "".join(chr(t) for t in tokens if not (skip_special_tokens and t == 1))

    def models(self, caller: Caller = OPEN_CALLER) -> Sequence[ModelCard]:
        return [
            ModelCard(id=name, created=1_700_000_000, max_model_len=2048, workers=1)
            for name in self.names
            if caller.sees_model(name)
        ]

    def model(self, name: str, caller: Caller = OPEN_CALLER) -> ModelCard:
        found = self._resolve(name, caller)
        return next(card for card in self.models(caller) if card.id == found)

    @property
    def operator(self) -> FakeOperator:
        return FakeOperator(self.adapters)

    def ready(self) -> bool:
        return self.is_ready
