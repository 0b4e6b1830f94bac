"""The one door through which both edges start generations: a server that shuts down knows what it still owes."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial

from router.adapters.report import AdapterOperator
from router.edge.door import Door
from router.edge.echo import Echo, tells_prompt
from router.request import GenerateRequest, Prompt
from router.service import Generation, ModelCard, Service
from router.tenancy.caller import Caller
from router.tenancy.keyring import Authenticator, OpenAuthenticator
from router.tenancy.records import Scope
from shared.errors import Overloaded, Unavailable
from shared.types import OPEN_TENANT

MAX_TEXT_CALLS = 64  # of tokenize and detokenize, at once
MAX_TENANT_TEXT_CALLS = 48  # of one tenant of several


def _shorter(one: float | None, other: float | None) -> float | None:
    shortest = min(math.inf if one is None else one, math.inf if other is None else other)
    return None if shortest == math.inf else shortest


class Gate:
    """A Service whose generations are counted, always closed, bounded in time, and refused once the gate is shut.

    `timeout` (seconds) bounds every request; None leaves them to their callers' deadlines. `authenticator` knows the callers. `all_up` is
    whether the other processes of this router have been ready once.
    """

    def __init__(
        self,
        service: Service,
        *,
        timeout: float | None = None,
        authenticator: Authenticator | None = None,
        all_up: Callable[[], bool] = lambda: True,
    ):
        self._service = service
        self._authenticator = authenticator or OpenAuthenticator()
        self._timeout = timeout
        self._all_up = all_up
        self._open = 0
        self._text_calls: Counter[str] = Counter()  # of each tenant, now
        self._idle = asyncio.Event()
        self._idle.set()
        self.shut = asyncio.Event()
        self.door = Door(service)

    @property
    def open_generations(self) -> int:
        """How many callers are being answered, those still waiting for admission included."""
        return self._open

    def able(self) -> bool:
        """Whether this process could serve a request now."""
        return not self.shut.is_set() and self._service.ready()

    def ready(self) -> bool:
        """Whether requests should be sent here: this process could serve one, and so could all of this router when they began."""
        return self.able() and self._all_up()

    def close(self) -> None:
        """Refuse what is new from here on; what runs goes on."""
        self.shut.set()

    async def idle(self) -> None:
        """Returns once no generation is open."""
        await self._idle.wait()

    def authenticate(self, credentials: str | None) -> Caller:
        """As Authenticator.authenticate."""
        return self._authenticator.authenticate(credentials)

    @asynccontextmanager
    async def open(self, request: GenerateRequest) -> AsyncIterator[Generation]:
        """A generation that is closed when the block is left, whichever way. Raises what Service.generate raises."""
        if self.shut.is_set():
            raise Unavailable("this server is shutting down; ask another", retry_after=1.0)
        request.caller.require(Scope.INFER)
        self._enter()
        try:
            timeout = _shorter(request.timeout, self._timeout)
            generation = await self._service.generate(replace(request, timeout=timeout))
            try:
                yield self._begun(generation, request)
            finally:
                await generation.aclose()
        finally:
            self._leave()

    def _begun(self, generation: Generation, request: GenerateRequest) -> Generation:
        """`generation`, with what the caller wants to see of the prompt before it."""
        if not tells_prompt(request):
            return generation
        decode = partial(self._service.detokenize, generation.base, caller=request.caller)
        return Echo(generation, request, decode)

    def _enter(self) -> None:
        self._open += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._idle.set()

    @contextmanager
    def _text_call(self, caller: Caller) -> Iterator[None]:
        """Counts a call that needs only text threads, which generations need too. Raises Overloaded where enough of them wait."""
        tenant_id = caller.tenant.id
        most = MAX_TEXT_CALLS if caller.tenant is OPEN_TENANT else MAX_TENANT_TEXT_CALLS
        if self._text_calls.total() >= MAX_TEXT_CALLS or self._text_calls[tenant_id] >= most:
            raise Overloaded(f"{self._text_calls[tenant_id]} texts wait to be read", retry_after=1.0)
        self._text_calls[tenant_id] += 1
        try:
            yield
        finally:
            self._text_calls[tenant_id] -= 1
            if not self._text_calls[tenant_id]:
                del self._text_calls[tenant_id]

    async def tokenize(
        self,
        model: str,
        prompt: Prompt,
        add_special_tokens: bool | None = None,
        *,
        caller: Caller,
        param: str = "prompt",
    ) -> Sequence[int]:
        """As Service.tokenize."""
        caller.require(Scope.INFER)
        with self._text_call(caller):
            return await self._service.tokenize(model, prompt, add_special_tokens, param=param, caller=caller)

    async def detokenize(
        self, model: str, tokens: Sequence[int], skip_special_tokens: bool = False, *, caller: Caller
    ) -> str:
        """As Service.detokenize."""
        caller.require(Scope.INFER)
        with self._text_call(caller):
            return await self._service.detokenize(model, tokens, skip_special_tokens, caller=caller)

    def models(self, caller: Caller) -> Sequence[ModelCard]:
        """As Service.models."""
        return self._service.models(caller)

    def model(self, name: str, caller: Caller) -> ModelCard:
        """As Service.model."""
        return self._service.model(name, caller)

    @property
    def operator(self) -> AdapterOperator:
        """As Service.operator."""
        return self._service.operator
