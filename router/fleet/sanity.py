"""What a worker says of itself, judged before anything is made of it: one that is broken must cost nobody but itself."""

import math
from dataclasses import replace
from typing import Any

from shared.types import Load, WorkerInfo

MOST_NAME = 1_024  # characters of anything that a worker is called

_NAMES = ("worker_id", "model", "model_revision", "tokenizer_digest", "numerics_id", "version")
_LEAST = {"max_model_len": 2, "vocab_size": 2, "total_blocks": 1, "max_running": 1}
_MEASURED = (
    "predicted_step_ms",
    "prefill_tokens_per_s",
    "step_us_per_sequence",
    "step_us_per_context_token",
    "step_us_per_pair",
)


class Unfit(ValueError):
    """No router can work with this worker; the message says why."""


def check_info(info: WorkerInfo) -> None:
    """Raises Unfit for names that would spoil logs and metrics, and for sizes at which its whole pool would serve nothing."""
    for name in _NAMES:
        text: str = getattr(info, name)
        if len(text) > MOST_NAME or not text.isprintable():
            raise Unfit(f"its {name} is over {MOST_NAME} characters, or not printable: {text[:80]!r}")
    for name in ("worker_id", "model"):
        if not getattr(info, name):
            raise Unfit(f"its {name} is empty")
    for name, least in _LEAST.items():
        if getattr(info, name) < least:
            raise Unfit(f"its {name} is {getattr(info, name)}, and must be at least {least}")


def believed(load: Load) -> Load:
    """The report; a measure that is no number, endless or negative counts as not measured, which is 0. Placement compares sums of them,
    and one that compares with nothing would leave no worker to choose."""
    wrong: dict[str, Any] = {name: 0.0 for name in _MEASURED if not 0 <= getattr(load, name) < math.inf}
    return replace(load, **wrong) if wrong else load
