"""When a sequence ends of itself."""

from typing import NamedTuple

from shared.types import FinishReason
from worker.sequence import SequenceState


class End(NamedTuple):
    """How a sequence ends. `stop_token` is the token that ended it; `message` an error's, `param` the option at fault, if one is."""

    reason: FinishReason
    stop_token: int | None = None
    message: str = ""
    param: str = ""


def natural_end(seq: SequenceState) -> End | None:
    """The end that the last known output brings, if any.

    The output at position p from the prompt's end may stop the sequence only if p >= min_tokens; the runner samples no stop token before.
    """
    if seq.outputs == 0:
        return None
    last = seq.tokens[-1]
    if last in seq.request.stop_tokens and seq.outputs > seq.request.spec.sampling.min_tokens:
        return End(FinishReason.STOP, stop_token=last)
    return End(FinishReason.LENGTH) if len(seq.tokens) >= seq.limit else None
