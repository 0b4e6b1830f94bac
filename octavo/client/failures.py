"""gRPC's errors as the ones that callers know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import grpc

from shared import rpc


@contextmanager
def told() -> Iterator[None]:
    """Raises the OctavoError behind a failed call, blocking or not."""
    try:
        yield
    except grpc.RpcError as error:
        # Every failure of a call, blocking or not, is also the Call itself.
        raise rpc.from_rpc_error(cast("grpc.Call", error)) from None
