"""gRPC's errors as the ones that callers know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import grpc

from shared import errors, rpc


class Unreached(errors.Unavailable):
    """Nobody answers at the address."""


class NotServed(errors.Internal):
    """Whoever answers at the address does not know the call."""


# What the transport itself says of a call is for whoever debugs the transport.
_WORDS: dict[grpc.StatusCode, errors.OctavoError] = {
    grpc.StatusCode.UNAVAILABLE: Unreached("the router cannot be reached, or the connection to it was lost"),
    grpc.StatusCode.UNIMPLEMENTED: NotServed("what listens there does not serve this call"),
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded("the call's time ran out"),
    grpc.StatusCode.CANCELLED: errors.Cancelled("the call was cancelled"),
}


def _told(call: grpc.Call) -> errors.OctavoError:
    words = None if rpc.is_rich(call) else _WORDS.get(call.code())
    return rpc.from_rpc_error(call) if words is None else type(words)(words.message)


@contextmanager
def told() -> Iterator[None]:
    """Raises the OctavoError behind a failed call, blocking or not."""
    try:
        yield
    except grpc.RpcError as error:
        # Every failure of a call, blocking or not, is also the Call itself.
        raise _told(cast("grpc.Call", error)) from None
