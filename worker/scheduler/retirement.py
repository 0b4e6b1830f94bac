"""What a step that retired brings: KV that is computed now, tokens, and ends."""

from shared.hashing import BLOCK_SIZE
from shared.types import FinishReason, PromptLogprobs, TokenDelta, TokenLogprobs
from worker.plan import RowError, StepResult
from worker.scheduler.builder import Flight
from worker.scheduler.fairness import OUTPUT_COST
from worker.scheduler.finish import End, natural_end
from worker.scheduler.lifecycle import Lifecycle
from worker.scheduler.outbox import Outbox
from worker.scheduler.residents import Residents
from worker.sequence import Phase, SequenceState


def _failed(error: RowError) -> End:
    return End(FinishReason.ERROR, message=error.message, param=error.param)


class Retirement:
    """Takes steps in the order in which they were planned."""

    def __init__(self, *, residents: Residents, lifecycle: Lifecycle, outbox: Outbox) -> None:
        self._residents = residents
        self._lifecycle = lifecycle
        self._outbox = outbox

    def apply(self, flight: Flight, result: StepResult) -> None:
        """Raises ValueError, and changes nothing, where the result is not one of this step."""
        if not len(flight.rows) == len(result.tokens) == len(result.logprobs) == len(result.errors):
            raise ValueError(f"step {flight.step} has {len(flight.rows)} samples, its result {len(result.tokens)}")
        if len(flight.prompts) != len(result.prompts):
            raise ValueError(
                f"step {flight.step} scores {len(flight.prompts)} prompts, its result {len(result.prompts)}"
            )
        for seq, incarnation, computed in flight.works:
            if seq.incarnation == incarnation:
                self._computed(seq, computed)
        for (seq, first), answer in zip(flight.prompts, result.prompts, strict=True):
            if seq.phase is not Phase.ENDED:  # else its heir, if there is one, computes these positions again
                self._scored(seq, first, answer)
        for seq, token, logprobs, error in zip(flight.rows, result.tokens, result.logprobs, result.errors, strict=True):
            seq.unknown -= 1
            if seq.phase is not Phase.ENDED:  # else it ended while this step was in flight
                self._sampled(seq, token, logprobs, error)
        self._residents.retire(flight.step)

    def fail(self, flight: Flight, message: str) -> None:
        """All that it computed something for end in an error, also those that have lost their place since."""
        for seq in flight.rows:
            seq.unknown -= 1
        for seq in dict.fromkeys([*(work[0] for work in flight.works), *flight.rows]):
            if seq.phase is not Phase.ENDED:
                self._lifecycle.end(seq, End(FinishReason.ERROR, message=message))
        self._residents.retire(flight.step)

    def _computed(self, seq: SequenceState, computed: int) -> None:
        """Blocks that are full now are cached."""
        seq.computed = computed
        assert seq.table is not None
        full = computed // BLOCK_SIZE
        if full > seq.table.registered:
            until = self._residents.in_flight(seq)
            self._residents.cache.register(seq.table, seq.hash_blocks(full)[:full], until)

    def _scored(self, seq: SequenceState, first: int, answer: tuple[TokenLogprobs, ...] | RowError) -> None:
        request = seq.request
        if isinstance(answer, RowError):
            self._lifecycle.end_request(request, _failed(answer))
            return
        rows = answer[request.rows_told + 1 - first :]
        if rows:
            prompt = PromptLogprobs(first=request.rows_told + 1, rows=rows)
            request.rows_told += len(rows)
            self._outbox.delta(request.stream, TokenDelta(handle=seq.choice.handle, tokens=(), prompt=prompt))

    def _sampled(self, seq: SequenceState, token: int, logprobs: TokenLogprobs | None, error: RowError | None) -> None:
        if error is not None:
            self._lifecycle.end(seq, _failed(error))
            return
        seq.tokens.append(token)
        seq.request.charge(OUTPUT_COST)
        rows = () if logprobs is None else (logprobs,)
        delta = TokenDelta(handle=seq.choice.handle, tokens=(token,), logprobs=rows)
        self._outbox.delta(seq.request.stream, delta)
        end = natural_end(seq)
        if end is not None:
            self._lifecycle.end(seq, end)
