"""Where a request has been, and what became of it there: which workers it may not go to again, and whether it may be what kills them."""

from dataclasses import dataclass, field

from router.fleet.stream import Loss


@dataclass(kw_only=True, slots=True)
class Trail:
    """`failed` are the workers lost under it since it last got a token, `refused` those that sent it back,
    `unequal` those that would not take its outputs as made with their own numbers.

    `deaths` counts losses in a row: one after which it got a token elsewhere is forgotten with the next. A request is *poison* when two
    workers in a row were lost under it and nothing else there can have done it; where others had not got a token there either, it goes
    on *probation*, next to no other on probation, and is poison if that worker is lost too.
    """

    worker_id: str = ""
    progressed: bool = False  # it has a token of `worker_id`
    failed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unequal: set[str] = field(default_factory=set)
    deaths: int = 0
    probation: bool = False
    poison: bool = False

    @property
    def avoided(self) -> set[str]:
        """Workers that it does not go to."""
        return self.failed | self.refused

    def sent(self, worker_id: str) -> None:
        """It goes to a worker."""
        self.worker_id, self.progressed = worker_id, False

    def token(self) -> None:
        """It got one."""
        self.progressed, self.probation = True, False

    def sent_back(self) -> None:
        """The worker did not take it, or stops."""
        self.refused.add(self.worker_id)

    def other_numerics(self) -> None:
        """The worker says that its numbers are others: it may have this as one with others, once."""
        if self.worker_id in self.unequal:
            self.refused.add(self.worker_id)
        self.unequal.add(self.worker_id)

    def lost(self, loss: Loss) -> None:
        """The worker is gone."""
        if self.progressed:
            self.failed.clear()
            self.refused.clear()
            self.deaths = 0
        self.failed.add(self.worker_id)
        self.deaths += 1
        if not self.progressed and self.deaths >= 2:
            self.poison = self.probation or loss.suspects <= 1
            self.probation = True
