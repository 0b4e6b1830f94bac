"""Tables on the device with a row for each slot that needs one."""

import torch


class Rows:
    """Which row a slot has. Rows are given out again; `size` is how many the table must have, doubled as needed, at most one a slot."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free: list[int] = []
        self._row: dict[int, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, slot: object) -> bool:
        return slot in self._row

    def of(self, slot: int) -> int:
        """The slot's row. KeyError where it has none."""
        return self._row[slot]

    def release(self, slot: int) -> None:
        """The slot needs none any more."""
        if slot in self._row:
            self._free.append(self._row.pop(slot))

    def take(self, slot: int) -> int:
        """A row for a slot that has none; it may hold anything."""
        if not self._free:
            more = min(max(self.size, 1), self._slots - self.size)
            self._free = list(range(self.size, self.size + more))
            self.size += more
        row = self._row[slot] = self._free.pop()
        return row


def grown(table: torch.Tensor, size: int) -> torch.Tensor:
    """The table with at least `size` rows, zeros in those that are new."""
    if len(table) >= size:
        return table
    return torch.cat((table, table.new_zeros(size - len(table), *table.shape[1:])))
