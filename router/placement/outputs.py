"""How many tokens a choice is expected to give, from what choices gave."""

SHARE = 0.05  # weight of the newest
ASSUMED = 64.0  # before any has ended


class OutputMean:
    """A moving mean."""

    def __init__(self) -> None:
        self._mean = ASSUMED

    def ended(self, tokens: int) -> None:
        """A choice ended by itself, with so many."""
        self._mean += SHARE * (tokens - self._mean)

    def expected(self, most: int) -> float:
        """Of a choice that may give at most so many."""
        return min(float(most), self._mean)
