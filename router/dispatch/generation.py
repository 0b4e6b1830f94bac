"""A flight as the edges see it."""

from collections.abc import AsyncIterator, Sequence

from router.dispatch.flight import Flight
from router.request import Logprobs, Piece, Usage
from router.tenancy.admission import Reservation
from router.tenancy.rates import Rates
from shared.errors import OctavoError


class RoutedGeneration:
    """Implements router.service.Generation."""

    def __init__(self, flight: Flight, reservation: Reservation):
        self._flight = flight
        self._reservation = reservation

    @property
    def id(self) -> str:
        """See Generation."""
        return self._flight.job.id

    @property
    def model(self) -> str:
        """See Generation."""
        job = self._flight.job
        return job.request.model if job.adapter else job.pool.model

    @property
    def base(self) -> str:
        """See Generation."""
        return self._flight.job.pool.model

    @property
    def seed(self) -> int:
        """See Generation."""
        return self._flight.job.sampling.seed

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """See Generation."""
        return self._flight.job.prompt

    @property
    def prompt_logprobs(self) -> Sequence[Logprobs | None]:
        """See Generation."""
        return self._flight.prompt_logprobs()

    @property
    def usage(self) -> Usage:
        """See Generation."""
        return self._flight.usage()

    @property
    def rates(self) -> Rates | None:
        """See Generation."""
        return self._reservation.rates

    @property
    def resumed(self) -> str:
        """See Generation."""
        return "inexact" if self._flight.inexact else ""

    async def __aiter__(self) -> AsyncIterator[tuple[Piece, ...]]:
        """See Generation. It ends, or fails, once its usage is kept: what a caller saw whole, no crash takes out of the ledger."""
        try:
            async for pieces in self._flight.delivery.flushes():
                yield pieces
        except OctavoError:
            await self._reservation.closed()
            raise
        await self._reservation.closed()

    async def aclose(self) -> None:
        """See Generation."""
        self._flight.cancel()
