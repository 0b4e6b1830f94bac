"""What one turn of the engine's thread tells the event loop."""

from dataclasses import dataclass, field

from shared.types import Finished, Rejected, TokenDelta
from worker.engine.engine import StepFacts
from worker.events import EngineStats, KvChange, StepOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One turn. `acks` are (stream, seq) of the Submits that `stats` cover now; `taken` counts commands since the start.

    `snapshots` are (stream, every published hash) as of all of `output.kv`, in reports and here.
    """

    output: StepOutput
    stats: EngineStats
    has_work: bool
    taken: int
    acks: tuple[tuple[int, int], ...] = ()
    step: StepFacts | None = None
    snapshots: tuple[tuple[int, tuple[bytes, ...]], ...] = ()


class NetChange:
    """KV changes one after the other, as one: what came and went again is not told."""

    def __init__(self) -> None:
        self._present: dict[bytes, bool] = {}

    def add(self, change: KvChange) -> None:
        """`change` comes after all that came before."""
        for present, hashes in ((False, change.removed), (True, change.added)):
            for each in hashes:
                if self._present.pop(each, present) == present:
                    self._present[each] = present

    def take(self, limit: int | None = None) -> KvChange:
        """The first `limit` changes, or all; they are forgotten here."""
        chosen = list(self._present.items())[:limit]
        for each, _ in chosen:
            del self._present[each]
        added = tuple(each for each, present in chosen if present)
        return KvChange(added=added, removed=tuple(each for each, present in chosen if not present))

    def clear(self) -> None:
        """Forget everything."""
        self._present.clear()

    def __len__(self) -> int:
        return len(self._present)


@dataclass(kw_only=True, slots=True)
class Draft:
    """A report in the making."""

    acks: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)
    step: StepFacts | None = None
    _deltas: list[tuple[int, TokenDelta]] = field(default_factory=list)
    _finished: list[tuple[int, Finished]] = field(default_factory=list)
    _rejected: list[tuple[int, Rejected]] = field(default_factory=list)
    _kv: NetChange = field(default_factory=NetChange)

    def add(self, output: StepOutput) -> None:
        """The next call's output."""
        self._deltas += output.deltas
        self._finished += output.finished
        self._rejected += output.rejected
        self._kv.add(output.kv)

    def report(self, stats: EngineStats, *, has_work: bool, taken: int) -> Report:
        """The finished report. Of one choice, tokens still come before its end: nothing follows an end in any call."""
        output = StepOutput(
            deltas=tuple(self._deltas),
            finished=tuple(self._finished),
            rejected=tuple(self._rejected),
            kv=self._kv.take(),
        )
        return Report(
            output=output,
            stats=stats,
            has_work=has_work,
            taken=taken,
            acks=tuple(self.acks),
            step=self.step,
            snapshots=tuple(self.snapshots),
        )
