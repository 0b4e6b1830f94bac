"""When tokens of streams that are under way go on to their readers: at once while there is time, together when there is not.

A round takes what has come for all streams since the last one and lets each reader's task write it as one event. After a round that took
long there is a pause of three times what it took, in which more comes: so that at most a quarter of the loop's time goes into telling, the
busier it is the more tokens an event holds, a new request finds the loop free most of the time, and one stream alone waits for next to
nothing. No pause is longer than `most`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

_SLICE = 4  # told in one turn of the loop
_HOPS = 2  # turns of the loop after which the tasks that a round has woken have written
_PAUSE = 3.0  # times what a round took


class Held(Protocol):
    """What has something to tell; stands for itself."""

    def __hash__(self) -> int:
        """By identity."""

    def settle(self) -> None:
        """Tell all that has come."""


class Pace:
    """One event loop's. `most` is in seconds; with 0 nothing is to be held."""

    def __init__(self, most: float):
        self.most = most
        self._held: dict[Held, None] = {}
        self._busy = False  # a round is due, or has not been written yet
        self._not_before = 0.0

    def hold(self, who: Held) -> None:
        """It has something to tell in the next round."""
        self._held[who] = None
        if not self._busy:
            self._busy = True
            self._after(self._not_before - time.perf_counter())

    def _after(self, pause: float) -> None:
        loop = asyncio.get_running_loop()
        if pause > 0:
            loop.call_later(pause, self._round)
        else:
            loop.call_soon(self._round)

    def _round(self) -> None:
        held, self._held = self._held, {}
        self._slice(time.perf_counter(), list(held), 0)

    def _slice(self, began: float, held: Sequence[Held], start: int) -> None:
        """Some, then whatever else waits for the loop, then the next: a new request has many turns to take, each as long as the loop's."""
        for each in held[start : start + _SLICE]:
            each.settle()
        if start + _SLICE < len(held):
            asyncio.get_running_loop().call_soon(self._slice, began, held, start + _SLICE)
        else:
            self._wait(began, _HOPS)

    def _wait(self, began: float, hops: int) -> None:
        """For what the round has woken, then for a pause."""
        if hops:
            asyncio.get_running_loop().call_soon(self._wait, began, hops - 1)
            return
        now = time.perf_counter()
        pause = min(self.most, _PAUSE * (now - began))
        self._not_before = now + pause
        self._busy = bool(self._held)
        if self._held:
            self._after(pause)
