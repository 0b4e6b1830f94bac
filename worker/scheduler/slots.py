"""The runner's slots: which are free, which a step in flight still names."""


class SlotPool:
    """Slots 0 .. count-1, the lowest given first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(reversed(range(count)))
        self._retiring: dict[int, list[int]] = {}  # step in flight -> slots let go under it

    @property
    def free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    @property
    def soon(self) -> int:
        """Slots that can be taken when the steps in flight have retired, besides those that can now."""
        return sum(map(len, self._retiring.values()))

    def take(self) -> int:
        """A free slot. Raises IndexError where there is none."""
        return self._free.pop()

    def release(self, slot: int, until: int | None) -> None:
        """The slot is used no more; step `until`, where there is one, is in flight and names it."""
        if until is None:
            self._free.append(slot)
        else:
            self._retiring.setdefault(until, []).append(slot)

    def retire(self, step: int) -> None:
        """`step` is in flight no more."""
        self._free.extend(self._retiring.pop(step, ()))

    def check_integrity(self, used: list[int]) -> None:
        """`used` are the slots that sequences have. Raises AssertionError."""
        every = [*used, *self._free, *(slot for slots in self._retiring.values() for slot in slots)]
        assert sorted(every) == list(range(self._count)), f"slots: not each exactly once in {sorted(every)}"
