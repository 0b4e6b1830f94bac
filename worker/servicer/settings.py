"""The times and bounds of router streams, in seconds (DESIGN sections 6 and 7)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSettings:
    """`tick` is how often a router's silence is looked at; where that took over `stall_after`, this process itself stood still.

    Loads come at least every `load_interval`, at a change not sooner than `load_gap` after the last, and sooner, by `credit_gap`, where the
    router has spent all the credit that it was told of.
    A router for which more than `undelivered` frames wait, a step's counted as one, for `stuck_after` is dropped.
    After `failed_steps` steps in a row that failed as a whole the worker gives itself up: what it has left of its device or its memory
    does not do, and only a new process may.
    `unfinished_submits` bounds the Submits of a stream of which parts are missing.
    """

    load_interval: float = 0.5
    load_gap: float = 0.02
    credit_gap: float = 0.002
    hello_timeout: float = 10.0
    silent_after: float = 5.0
    undelivered: int = 256
    stuck_after: float = 0.5
    tick: float = 0.25
    stall_after: float = 1.0
    hung_after: float = 5.0
    hung_steps: float = 20.0
    failed_steps: int = 5
    unfinished_submits: int = 16
    flush_timeout: float = 2.0  # for last frames on their way
