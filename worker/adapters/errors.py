"""What may be wrong with an adapter, each with what a stream's Reject says of it."""

from shared.errors import InvalidRequest, NotFound, OctavoError, Overloaded, Unavailable
from shared.types import RejectCode

MOST_SHOWN = 200  # characters of what an adapter's files say


def shown(text: str) -> str:
    """What a stranger wrote, as a message tells it: not too much of it, and nothing that a terminal or a log takes for its own."""
    cut = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return cut if cut.isprintable() else ascii(cut)


class AdapterInvalid(InvalidRequest):
    """It cannot be served, ever: broken, of a kind that is not served, or not to be read. The message names what and where."""

    code = "adapter_invalid"


class AdapterMismatch(AdapterInvalid):
    """It was made for another model. The message names keys and shapes."""

    code = "adapter_mismatch"


class AdapterRankTooHigh(AdapterInvalid):
    """Its rank is over what the worker's slots take. The message has both numbers."""

    code = "adapter_rank_too_high"


class AdapterNotFound(NotFound):
    """No such name, or nothing where it should be."""

    code = "adapter_not_found"


class AdapterVersionUnavailable(Unavailable):
    """The name means another version by now."""

    code = "adapter_version_unavailable"


class AdapterMemory(Overloaded):
    """There is no room, and what could make some is in use."""

    code = "adapter_memory"


_REJECTS: tuple[tuple[type[OctavoError], RejectCode], ...] = (
    (AdapterNotFound, RejectCode.ADAPTER_UNKNOWN),
    (AdapterMemory, RejectCode.ADAPTER_MEMORY),
    (AdapterVersionUnavailable, RejectCode.ADAPTER_VERSION_UNAVAILABLE),
    (InvalidRequest, RejectCode.ADAPTER_INVALID),
)


def reject_code(error: OctavoError) -> RejectCode:
    """What a Reject says; whatever is not of the adapter's making may do elsewhere."""
    found = (code for kind, code in _REJECTS if isinstance(error, kind))
    return next(found, RejectCode.ADAPTER_VERSION_UNAVAILABLE)
