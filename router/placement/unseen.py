"""Dispatches that their worker's last report cannot know of: without them a worker would look idle until it reports again."""

from router.placement.view import Share


class Unseen:
    """One stream's, by the number of the Submit."""

    def __init__(self) -> None:
        self._shares: dict[int, Share] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, seq: int, share: Share) -> None:
        """Sent."""
        self._shares[seq] = share

    def drop(self, seq: int) -> None:
        """Taken back, or refused."""
        self._shares.pop(seq, None)

    def covered(self, acked_seq: int) -> None:
        """A report came that knows of all Submits up to this."""
        if self._shares:
            self._shares = {seq: share for seq, share in self._shares.items() if seq > acked_seq}

    @property
    def total(self) -> Share:
        """All together."""
        return Share(*map(sum, zip(*self._shares.values(), strict=True))) if self._shares else Share(0)
