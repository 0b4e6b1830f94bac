"""gRPC's errors as the ones that callers know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import grpc

from shared import errors, rpc

# What the transport itself says of a call is for whoever debugs the transport.
_WORDS: dict[type[errors.OctavoError], str] = {
    errors.Unavailable: "the router cannot be reached, or the connection to it was lost",
    errors.DeadlineExceeded: "the call's time ran out",
    errors.Cancelled: "the call was cancelled",
}


def _told(call: grpc.Call) -> errors.OctavoError:
    error = rpc.from_rpc_error(call)
    words = None if rpc.is_rich(call) else _WORDS.get(type(error))
    return error if words is None else type(error)(words)


@contextmanager
def told() -> Iterator[None]:
    """Raises the OctavoError behind a failed call, blocking or not."""
    try:
        yield
    except grpc.RpcError as error:
        # Every failure of a call, blocking or not, is also the Call itself.
        raise _told(cast("grpc.Call", error)) from None
