"""Dispatches that their worker's last report cannot know of: without them a worker would look idle until it reports again."""

from router.placement.view import Share

NONE = Share(0)


class Unseen:
    """One stream's, by the number of the Submit."""

    def __init__(self) -> None:
        self._shares: dict[int, Share] = {}
        self._total: Share | None = NONE  # None where it is to be added up again

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, seq: int, share: Share) -> None:
        """Sent."""
        self._shares[seq] = share
        self._total = None

    def drop(self, seq: int) -> None:
        """Taken back, or refused."""
        if self._shares.pop(seq, None) is not None:
            self._total = None

    def covered(self, acked_seq: int) -> None:
        """A report came that knows of all Submits up to this."""
        left = {seq: share for seq, share in self._shares.items() if seq > acked_seq}
        if len(left) != len(self._shares):
            self._shares, self._total = left, None

    @property
    def total(self) -> Share:
        """All together. The same object until something changes."""
        if self._total is None:
            self._total = Share(*map(sum, zip(*self._shares.values(), strict=True))) if self._shares else NONE
        return self._total
