"""How requests come, how their choices are preempted, and how they end, wherever they stand."""

from shared.hashing import BLOCK_SIZE, chain
from shared.types import Finished, FinishReason, RejectCode, Rejected, TokenRequest
from worker.kvcache.cache import KvCache
from worker.scheduler.backlog import Backlog
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.estimates import Estimates
from worker.scheduler.fairness import OUTPUT_COST, PROMPT_COST, Accounts
from worker.scheduler.finish import End, natural_end
from worker.scheduler.outbox import Outbox
from worker.scheduler.queue import Entry, WaitingQueue
from worker.scheduler.registry import Registry
from worker.scheduler.residents import Residents
from worker.scheduler.steptime import pairs_of
from worker.scheduler.validate import longest, refusal
from worker.sequence import Adapter, Phase, RequestState, SequenceState

RETRY_MS = (100, 30_000)  # the bounds of what an overloaded worker advises


class Lifecycle:
    """The only place where sequences come to be, go back to the queue, or end."""

    def __init__(
        self,
        *,
        config: SchedulerConfig,
        queue: WaitingQueue,
        residents: Residents,
        accounts: Accounts,
        registry: Registry,
        outbox: Outbox,
        estimates: Estimates,
    ) -> None:
        self._config = config
        self._queue = queue
        self._residents = residents
        self._accounts = accounts
        self._registry = registry
        self._outbox = outbox
        self._estimates = estimates
        self.backlog = Backlog(limit=config.max_waiting, tenant_limit=config.max_waiting_per_tenant)
        self.preemptions = 0
        self.cold_admissions = 0
        self._order = 0

    @property
    def _cache(self) -> KvCache:
        return self._residents.cache

    def submit(self, stream: int, spec: TokenRequest, now: float) -> None:
        """Queue a request, or refuse it, or bounce another for it."""
        refused = refusal(
            spec, stream=stream, registry=self._registry, config=self._config, num_blocks=self._cache.num_blocks
        )
        if refused is None and self.backlog.tenant_full(self._accounts.get(spec.tenant)):
            refused = self._overloaded(spec.seq, f"{self._config.max_waiting_per_tenant} requests of this tenant wait")
        if refused is not None:
            self._outbox.rejected(stream, refused)
            return
        request = self._request(stream, spec, now)
        self._accounts.enter(request)
        if request.adapter is not None:
            self._residents.adapters.enter(request.adapter, request.live)
        self._registry.watch(request)
        self._queue_choices(request, now)
        if self.backlog.overfull:
            self._bounce(self.backlog.to_bounce() or request)

    def _request(self, stream: int, spec: TokenRequest, now: float) -> RequestState:
        self._order += 1
        digest = spec.adapter_digest
        eos = () if spec.sampling.ignore_eos else self._config.eos_token_ids
        return RequestState(
            stream=stream,
            spec=spec,
            order=self._order,
            deadline=None if spec.remaining_ms is None else now + spec.remaining_ms / 1000,
            account=self._accounts.get(spec.tenant),
            chain=chain(
                model_revision=self._config.model_revision,
                adapter_digest=digest,
                salt=spec.tenant.salt,
                salt_from=spec.tenant.salt_from,
            ),
            adapter=self._residents.adapters.get(digest) if digest else None,
            stop_tokens=frozenset((*eos, *spec.sampling.stop_token_ids)),
            live=len(spec.choices),
        )

    def _queue_choices(self, request: RequestState, now: float) -> None:
        """Choices without outputs wait as one; those with outputs each alone. Whose outputs end them already end at once."""
        sequences = self._sequences(request)
        for seq in sequences:
            self._registry.add(seq)
        ends = {seq: natural_end(seq) for seq in sequences}
        waiting = [seq for seq in sequences if ends[seq] is None]
        groups = [[seq for seq in waiting if not seq.outputs], *([seq] for seq in waiting if seq.outputs)]
        cost = sum(self._push(group, now).cost for group in groups if group)
        if len(waiting) == len(sequences):
            self.backlog.add(request, cost)
        for seq, end in ends.items():
            if end is not None:
                self.end(seq, end)

    def _sequences(self, request: RequestState) -> list[SequenceState]:
        spec, prompt = request.spec, list(request.spec.prompt_tokens)
        hashes = request.chain.hashes(prompt) if self._config.prefix_cache else []
        limit = longest(spec, self._config)
        return [
            SequenceState(
                request=request,
                choice=choice,
                tokens=[*prompt, *choice.output_tokens],
                limit=limit,
                hashes=list(hashes),
            )
            for choice in spec.choices
        ]

    def _push(self, sequences: list[SequenceState], now: float, *, again: bool = False) -> Entry:
        leader = sequences[0]
        uncached = self._uncached(leader)
        outputs = min(leader.limit - len(leader.tokens), self._estimates.output_tokens)
        prompt_cost = 0.0 if again or leader.request.spec.resumed else PROMPT_COST * uncached
        cost = prompt_cost + OUTPUT_COST * outputs * len(sequences)
        pairs = pairs_of(len(leader.tokens) - uncached, uncached)
        entry = Entry(sequences=sequences, since=now, uncached=uncached, cost=cost, again=again, pairs=pairs)
        self._queue.push(entry)
        return entry

    def _uncached(self, seq: SequenceState) -> int:
        """Tokens to compute if the cache stays as it is."""
        blocks = seq.readable if self._config.prefix_cache else 0
        hits = self._cache.probe(seq.hash_blocks(blocks)[:blocks], len(seq.tokens))
        return len(seq.tokens) - BLOCK_SIZE * len(hits.blocks)

    def _overloaded(self, seq: int, why: str) -> Rejected:
        seconds = self._queue.uncached_tokens / self._estimates.prefill_tokens_per_s + self._estimates.full_step_s
        retry = int(min(max(1000 * seconds, RETRY_MS[0]), RETRY_MS[1]))
        return Rejected(seq=seq, code=RejectCode.QUEUE_FULL, message=f"overloaded: {why}", retry_after_ms=retry)

    def _bounce(self, request: RequestState) -> None:
        rejected = self._overloaded(request.spec.seq, f"{self._config.max_waiting} requests wait")
        for seq in [self._registry.find(request.stream, choice.handle) for choice in request.spec.choices]:
            assert seq is not None
            self._unlink(seq)
        self._outbox.rejected(request.stream, rejected)

    def refuse_adapter(self, adapter: Adapter, code: RejectCode, message: str) -> None:
        """All of its sequences end: the adapter cannot be had. Requests of which no choice ever had a place are given back as rejected."""
        found = {seq.request for seq in self._registry.all() if seq.request.adapter is adapter}
        for request in sorted(found, key=lambda one: one.order):
            sequences = [self._registry.find(request.stream, choice.handle) for choice in request.spec.choices]
            live = [seq for seq in sequences if seq is not None and seq.request is request]
            if len(live) < len(sequences) or any(seq.cached_tokens is not None for seq in live):
                param = "model" if code is RejectCode.ADAPTER_INVALID else ""
                self.end_request(request, End(FinishReason.ERROR, message=message, param=param))
                continue
            for seq in live:
                self._unlink(seq)
            rejected = Rejected(seq=request.spec.seq, code=code, message=message, param="model")
            self._outbox.rejected(request.stream, rejected)

    def placed(self, request: RequestState, *, cold: bool) -> None:
        """A choice of it has been admitted: it is not in the backlog any more. `cold`: most of its prompt is to be computed."""
        self.backlog.remove(request)
        self.cold_admissions += cold

    def preempt(self, leader: SequenceState, now: float) -> None:
        """It, and those that wait for its prefill, lose slot and blocks and wait again, where their age puts them. Tokens in flight still
        count when they retire."""
        sequences = self._residents.evict(leader)
        leader.preemptions += 1
        self.preemptions += 1
        self._push(sequences, now, again=True)

    def end(self, seq: SequenceState, end: End) -> None:
        """End one choice, wherever it stands, and say so."""
        self._unlink(seq)
        if end.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._estimates.ended(seq.outputs)
        finished = Finished(
            handle=seq.choice.handle,
            reason=end.reason,
            prompt_tokens=seq.prompt_len,
            output_tokens=seq.outputs,
            cached_tokens=seq.cached_tokens or 0,
            stop_token=end.stop_token,
            message=end.message,
            param=end.param,
            preemptions=seq.preemptions,
        )
        self._outbox.finished(seq.request.stream, finished)

    def end_request(self, request: RequestState, end: End) -> None:
        """End all of its choices, wherever they stand: the last first, so that no prefill is handed over."""
        for choice in reversed(request.spec.choices):
            seq = self._registry.find(request.stream, choice.handle)
            if seq is not None and seq.request is request:
                self.end(seq, end)

    def discard(self, seq: SequenceState) -> None:
        """End one choice and say nothing."""
        self._unlink(seq)

    def _unlink(self, seq: SequenceState) -> None:
        if seq.phase is Phase.WAITING:
            self._queue.drop(seq)
        elif seq.phase is not Phase.NEW:
            self._residents.remove(seq)
        seq.phase = Phase.ENDED
        self._registry.remove(seq)
        request = seq.request
        request.live -= 1
        if request.live == 0:
            self.backlog.remove(request)
        self._accounts.leave(request)
        if request.adapter is not None:
            self._residents.adapters.leave(request.adapter)
