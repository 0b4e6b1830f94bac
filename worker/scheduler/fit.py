"""Parameters of the step-time model from a few measurements."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from worker.scheduler.steptime import ASSUMED, StepShape, StepTimes, dot, features

ROUNDS = 6  # of re-weighting
SWEEPS = 400  # of coordinate descent a round
STILL = 1e-6  # of an assumed parameter: a sweep that moves none by more is the last
TRUST = 0.1  # relative error within which a measurement counts in full
PRIOR = 1e-5  # how much the assumed proportions count beside one measurement


class Measurement(NamedTuple):
    """A step's shape and its time."""

    shape: StepShape
    seconds: float


def fit(measurements: Sequence[Measurement]) -> StepTimes:
    """Least squares of relative errors, no parameter negative, outliers weighing less (Huber's weights).

    What the measurements do not tell apart stays near the assumed proportions. Without measurements the model is the assumed one.
    """
    if not measurements:
        return StepTimes()
    rows = [[value / seconds for value in features(shape)] for shape, seconds in measurements]
    scale = median(1 / dot(ASSUMED, row) for row in rows)
    assumed = [each * scale for each in ASSUMED]
    rows = [[value * unit for value, unit in zip(row, assumed, strict=True)] for row in rows]
    solution, weights = [1.0] * len(assumed), [1.0] * len(rows)
    for _ in range(ROUNDS):
        solution = _descend(rows, weights, solution)
        errors = [abs(dot(solution, row) - 1) for row in rows]
        weights = [min(1.0, TRUST / error) if error else 1.0 for error in errors]
    return StepTimes([part * unit for part, unit in zip(solution, assumed, strict=True)], measured=True)


def _descend(rows: Sequence[Sequence[float]], weights: Sequence[float], start: Sequence[float]) -> list[float]:
    """The x >= 0 that minimises sum weights * (rows x - 1)^2 + PRIOR * (x - 1)^2, coordinate by coordinate."""
    size = len(start)
    weighted = [[weight * value for value in row] for weight, row in zip(weights, rows, strict=True)]
    gram = [
        [sum(w[i] * row[j] for w, row in zip(weighted, rows, strict=True)) for j in range(size)] for i in range(size)
    ]
    target = [sum(w[i] for w in weighted) + PRIOR for i in range(size)]
    for i in range(size):
        gram[i][i] += PRIOR
    x = list(start)
    for _ in range(SWEEPS):
        moved = 0.0
        for i in range(size):
            old, x[i] = x[i], max(0.0, x[i] + (target[i] - dot(gram[i], x)) / gram[i][i])
            moved = max(moved, abs(x[i] - old))
        if moved < STILL:
            break
    return x
