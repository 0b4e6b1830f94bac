"""A flight as the edges see it."""

from collections.abc import AsyncIterator, Sequence

from router.dispatch.flight import Flight
from router.request import Logprobs, Piece, Usage


class RoutedGeneration:
    """Implements router.service.Generation."""

    def __init__(self, flight: Flight):
        self._flight = flight

    @property
    def id(self) -> str:
        """See Generation."""
        return self._flight.job.id

    @property
    def model(self) -> str:
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

    def __aiter__(self) -> AsyncIterator[tuple[Piece, ...]]:
        """See Generation."""
        return self._flight.delivery.flushes()

    async def aclose(self) -> None:
        """See Generation."""
        self._flight.cancel()
