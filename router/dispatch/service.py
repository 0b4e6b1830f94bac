"""The router's inside, as the edges see it: router.service.Service over a fleet."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from router.adapters.keeper import Keeper
from router.adapters.names import Meant, Names
from router.adapters.report import AdapterOperator
from router.dispatch.accounts import Accounted, estimate, used
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.ends import VERSION_GONE
from router.dispatch.flight import Flight, Job
from router.dispatch.generation import RoutedGeneration
from router.dispatch.pace import Pace
from router.dispatch.prefixes import PublicPrefixes
from router.dispatch.settings import DispatchSettings
from router.dispatch.validate import bad_words, check_prompt, resolve_sampling, stop_tokens
from router.fleet.drain import Drained, drain
from router.fleet.fleet import Fleet, Pool
from router.fleet.report import WorkerReport, report
from router.metrics import RouterMetrics
from router.placement.prompt import PromptMarks
from router.request import GenerateRequest, Prompt
from router.service import Generation, ModelCard
from router.tenancy.admission import Admission, Reservation
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.metrics import TenantMetrics
from router.tenancy.records import PrefixRecord
from router.tenancy.turnstile import Turnstile
from router.text import stops
from router.text.output import OutputSpec
from router.text.threads import TextThreads
from shared.errors import DeadlineExceeded, InvalidRequest, OctavoError
from shared.hashing import chain
from shared.types import Tenant

_REPLACED = 3  # times that a request begins again
_TOLD_WITHIN = 0.05  # seconds in which a worker tells what a name means now

ADMITTED_AT_ONCE = 16  # requests that are tokenized and reserved for

_UNKNOWN = "unknown"  # the metrics' name of models that are not served: a caller's words are no label


class RouterService:
    """Implements router.service.Service. Made by router.assemble."""

    def __init__(
        self,
        fleet: Fleet,
        dispatcher: Dispatcher,
        *,
        settings: DispatchSettings,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        admission: Admission,
        tenants: TenantMetrics,
        prefixes: Callable[[], Sequence[PrefixRecord]],
        names: Names,
        keeper: Keeper,
        operator: AdapterOperator,
    ):
        self._fleet = fleet
        self._names = names
        self._keeper = keeper
        self.operator = operator
        self._dispatcher = dispatcher
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._admission = admission
        self._tenants = tenants
        self._threads = TextThreads()
        self._prefixes = PublicPrefixes(prefixes, self._threads)
        self._turns = Turnstile(ADMITTED_AT_ONCE)
        self._pace = Pace(settings.coalesce)

    def waiting(self, caller: Caller) -> int:
        """See Service."""
        return self._dispatcher.waiting(caller.tenant)

    def check_room(self, caller: Caller, *, ahead: int = 0) -> None:
        """See Service."""
        try:
            self._dispatcher.check_any_room(caller.tenant, ahead)
            self._admission.check(caller)
        except OctavoError as error:
            self._refused(_UNKNOWN, caller, error)
            raise

    def _refused(self, model: str, caller: Caller, error: OctavoError) -> None:
        self._metrics.requests.labels(model, error.code).inc()
        self._tenants.ended(caller.tenant.id, error.code, None)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See Service. Returns once a worker has acknowledged the request or given its first token.

        Cancelling this call aborts the request, in whatever phase it is. A request whose adapter was replaced while it waited begins again
        on what its name means then.
        """
        for _ in range(_REPLACED):
            try:
                return await self._generate(request)
            except OctavoError as error:
                if error.code != VERSION_GONE:
                    raise
            await asyncio.sleep(_TOLD_WITHIN)
        return await self._generate(request)

    async def _generate(self, request: GenerateRequest) -> Generation:
        try:
            async with self._turns.turn(request.caller.tenant.id):
                flight, reservation = await self._admit(request)
        except OctavoError as error:
            served = {card.id for card in self._fleet.cards()}
            self._refused(request.model if request.model in served else _UNKNOWN, request.caller, error)
            raise
        try:
            await flight.settled.wait()
        except asyncio.CancelledError:
            flight.cancel()
            raise
        if flight.failure is not None and flight.over and not flight.begun:
            raise flight.failure
        return RoutedGeneration(flight, reservation)

    async def tokenize(
        self,
        model: str,
        prompt: Prompt,
        add_special_tokens: bool | None = None,
        *,
        param: str = "prompt",
        caller: Caller = OPEN_CALLER,
    ) -> Sequence[int]:
        """See Service."""
        pool = self._names.meant(model, caller).pool
        return await self._threads.encode(pool.text, prompt, add_special_tokens=add_special_tokens, param=param)

    async def detokenize(
        self, model: str, tokens: Sequence[int], skip_special_tokens: bool = False, *, caller: Caller = OPEN_CALLER
    ) -> str:
        """See Service."""
        pool = self._names.meant(model, caller).pool
        wrong = next((token for token in tokens if not 0 <= token < pool.vocab_size), None)
        if wrong is not None:
            raise InvalidRequest(f"{wrong} is no token id of this model", param="tokens")
        return await self._threads.decode(pool.text, tokens, skip_special_tokens=skip_special_tokens)

    def models(self, caller: Caller = OPEN_CALLER) -> Sequence[ModelCard]:
        """See Service."""
        return self._names.cards(caller)

    def model(self, name: str, caller: Caller = OPEN_CALLER) -> ModelCard:
        """See Service."""
        return self._names.card(name, caller)

    def ready(self) -> bool:
        """See Service."""
        return self._fleet.ready()

    def workers(self) -> Sequence[WorkerReport]:
        """Every target, and the worker there."""
        return [report(link, self._clock()) for link in self._fleet.links]

    async def drain(self, target: str, seconds: float | None = None) -> Drained:
        """The worker there takes nothing new; see fleet.drain."""
        return await drain(self._fleet.links, target, seconds)

    async def aclose(self) -> None:
        """End every request and cut every link."""
        self._dispatcher.cancel_all("the router stops")
        await self._keeper.aclose()
        await self._fleet.aclose()
        self._threads.close()

    async def _admit(self, request: GenerateRequest) -> tuple[Flight, Reservation]:
        """Resolve, tokenize, validate, reserve, queue."""
        arrived = self._clock()
        meant = self._names.meant(request.model, request.caller)
        pool, adapter = meant.pool, meant.adapter
        self._dispatcher.check_room(pool.key, request.tenant)
        prompt = await self._encode(request, pool)
        words = await self._bad_words(request, pool)
        check_prompt(prompt, pool, request.prompt_param)
        digest = adapter.seed if adapter else b""
        tenant = await self._salted(request.tenant, pool, prompt)
        linked = chain(
            model_revision=pool.key.revision, adapter_digest=digest, salt=tenant.salt, salt_from=tenant.salt_from
        )
        marks = await self._threads.marks(linked, prompt)
        job = self._job(request, meant, tenant, prompt, words, marks, arrived)
        account = Accounted(self._dispatcher, self._tenants)
        flight = Flight(job=job, observer=account, max_unread=self._settings.max_unread, pace=self._pace)
        reservation = account.reservation = await self._reserve(flight)
        try:
            self._dispatcher.submit(flight)
        except OctavoError:
            reservation.abandon()
            raise
        if job.deadline is not None and not flight.over:
            loop = asyncio.get_running_loop()
            flight.timer = loop.call_later(job.deadline - self._clock(), flight.expire)
        return flight, reservation

    async def _reserve(self, flight: Flight) -> Reservation:
        """Raises RateLimited, or what `estimate` raises."""
        reservation = await self._admission.reserve(flight.job.request.caller, estimate(flight))
        reservation.follow(lambda: used(flight))
        return reservation

    async def _encode(self, request: GenerateRequest, pool: Pool) -> Sequence[int]:
        try:
            async with asyncio.timeout(request.timeout):
                tokens = await self._threads.encode(pool.text, request.prompt, param=request.prompt_param)
        except TimeoutError as error:
            raise DeadlineExceeded("the request's time ran out") from error
        kept = request.truncate_prompt_tokens
        return tokens if kept is None else tokens[-kept:]

    async def _salted(self, tenant: Tenant, pool: Pool, prompt: Sequence[int]) -> Tenant:
        """With the place from which its salt counts. Who has no salt shares all with all that have none."""
        return replace(tenant, salt_from=await self._prefixes.length(pool, prompt)) if tenant.salt else tenant

    async def _bad_words(self, request: GenerateRequest, pool: Pool) -> tuple[tuple[int, ...], ...]:
        """Tokens of the bad words given as text."""
        strings = request.sampling.bad_word_strings
        return bad_words(await self._threads.bad_words(pool.text, strings, param="bad_word_strings"))

    def _job(
        self,
        request: GenerateRequest,
        meant: Meant,
        tenant: Tenant,
        prompt: Sequence[int],
        words: tuple[tuple[int, ...], ...],
        marks: PromptMarks,
        arrived: float,
    ) -> Job:
        options, pool = request.sampling, meant.pool
        output = OutputSpec(
            vocabulary=pool.text.vocabulary,
            prompt=prompt,
            stops=stops.build(options.stop) if options.stop else None,
            stop_tokens=stop_tokens(request, pool),
        )
        return Job(
            id=uuid.uuid4().hex,
            request=request,
            tenant=tenant,
            pool=pool.key,
            prompt=prompt,
            sampling=resolve_sampling(request, prompt, pool, words),
            output=output,
            arrived=arrived,
            deadline=None if request.timeout is None else arrived + request.timeout,
            marks=marks,
            adapter=meant.adapter,
        )
