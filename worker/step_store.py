"""Step times that outlive the worker: one small file for each machine, build, model and number of threads, in the cache directory.

What is there and is not right is as good as nothing: the worker measures again.
"""

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeGuard

from worker.scheduler.steptime import ASSUMED, KNOTS, StepTimes

FRESH_SECONDS = 7 * 24 * 3600.0  # what is older was measured on a machine that may have changed
_HUGE = 1e12  # seconds: nothing that is right comes near
_LOG = logging.getLogger("octavo.worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What step times depend on. `knots` are those of the model, so that parameters are never taken for those of another one."""

    numerics_id: str
    threads: int
    cpu: str
    knots: tuple[int, ...] = KNOTS

    def facts(self) -> dict[str, Any]:
        """As they stand in the file."""
        return {"numerics_id": self.numerics_id, "threads": self.threads, "cpu": self.cpu, "knots": list(self.knots)}


class StepStore:
    """`now` gives seconds since 1970."""

    def __init__(self, cache: Path, place: Place, now: Callable[[], float] = time.time) -> None:
        self._facts = place.facts()
        name = blake2b(json.dumps(self._facts, sort_keys=True).encode(), digest_size=16).hexdigest()
        self.file = cache / "step_times" / f"{name}.json"
        self._now = now

    def load(self) -> StepTimes | None:
        """What was saved, where it is whole, about this place, and fresh."""
        try:
            saved = json.loads(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            _LOG.warning("ignoring step times in %s: %s", self.file, error)
            return None
        parameters = self._parameters(saved)
        if parameters is None:
            _LOG.info("ignoring step times in %s: stale, or not what is wanted", self.file)
            return None
        return StepTimes(parameters, measured=True)

    def _parameters(self, saved: Any) -> list[float] | None:
        if not isinstance(saved, Mapping) or any(saved.get(key) != value for key, value in self._facts.items()):
            return None
        saved_at, parameters = saved.get("saved_at"), saved.get("parameters")
        if not _is_number(saved_at) or not 0 <= self._now() - saved_at <= FRESH_SECONDS:
            return None
        if not isinstance(parameters, list) or len(parameters) != len(ASSUMED):
            return None
        right = all(_is_number(each) and each >= 0 for each in parameters) and sum(parameters) > 0
        return [float(each) for each in parameters] if right else None

    def save(self, times: StepTimes) -> None:
        """Write it whole or not at all; where that fails the next start measures again. What rests on no measurement is not saved."""
        if not times.measured:
            return
        content = {**self._facts, "saved_at": self._now(), "parameters": times.parameters}
        aside = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(content))
            aside.replace(self.file)
        except OSError as error:
            _LOG.warning("cannot save step times: %s", error)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE  # false for NaN


def cpu_name(root: Path = Path("/")) -> str:
    """The processor's name as the system tells it, else the architecture's."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
