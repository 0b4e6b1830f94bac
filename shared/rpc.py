"""Channels and servers as Octavo sets them up, and its errors as rich gRPC statuses.

Source of the option names: gRPC core's grpc_types.h. One event loop per process; a channel is made inside the loop that uses it.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from shared import errors, grpc_server

Options = Sequence[tuple[str, int]]

FRAME_LIMIT = 64 << 10  # bytes, either way on a worker's stream
INTERNAL_RECEIVE_LIMIT = 64 << 20
PUBLIC_RECEIVE_LIMIT = 8 << 20
DOMAIN = "octavo"

MOST_WORDS = (
    1_000  # bytes of an error's words: they stand three times in a call's trailers, of which gRPC takes 8 KiB in all
)

_DETAILS_KEY = "grpc-status-details-bin"

_KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_ACCEPT_PINGS: Options = (
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def _client_options(receive_limit: int) -> list[tuple[str, int]]:
    limits = (("grpc.max_receive_message_length", receive_limit), ("grpc.max_send_message_length", -1))
    reconnect = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 2_000))
    return [*_KEEPALIVE, *limits, *reconnect]


def _unread_options(unread: int | None) -> Options:
    """gRPC widens a stream's window to what a connection could carry, also where nobody reads: the more that waits, the wider."""
    return () if unread is None else (("grpc.http2.lookahead_bytes", unread), ("grpc.http2.bdp_probe", 0))


def channel(target: str, *, receive_limit: int = INTERNAL_RECEIVE_LIMIT, unread: int | None = None) -> grpc.aio.Channel:
    """A plaintext channel to `host:port` (or any gRPC target). Must be called inside the event loop that uses it. `unread` bounds the
    bytes of a stream that have come and nobody has read, a message more or less; without it they are some megabytes.
    """
    return grpc.aio.insecure_channel(target, options=[*_client_options(receive_limit), *_unread_options(unread)])


def blocking_channel(target: str, *, receive_limit: int = INTERNAL_RECEIVE_LIMIT) -> grpc.Channel:
    """As `channel`, for code without an event loop."""
    return grpc.insecure_channel(target, options=_client_options(receive_limit))


def server(
    *, receive_limit: int, interceptors: Sequence[grpc.aio.ServerInterceptor] = (), options: Options = ()
) -> grpc.aio.Server:
    """A server that shares no port with another process unless asked to, and tolerates keepalive pings of idle streams."""
    ours = {
        "grpc.max_receive_message_length": receive_limit,
        "grpc.so_reuseport": 0,
    }  # of one name twice, gRPC takes the first
    asked = [*_KEEPALIVE, *_ACCEPT_PINGS, *(ours | dict(options)).items()]
    return grpc_server.server(interceptors, asked)


def to_status(error: errors.OctavoError) -> status_pb2.Status:
    """`error` as a google.rpc.Status with ErrorInfo and, where they apply, BadRequest and RetryInfo. Words that are too long are cut."""
    words = error.message.encode()[:MOST_WORDS].decode(errors="ignore")
    details = [error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata={"param": error.param or ""})]
    status = status_pb2.Status(code=getattr(grpc.StatusCode, errors.answer(error).grpc).value[0], message=words)
    if error.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=words)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: errors.OctavoError) -> NoReturn:
    """End the call with `error`'s rich status."""
    rich = rpc_status.to_status(to_status(error))
    rates = tuple(error.rates.items()) if isinstance(error, errors.RateLimited) else ()
    await context.abort(rich.code, rich.details, (*rich.trailing_metadata, *rates))
    raise AssertionError("abort returned")


_BY_STATUS: dict[grpc.StatusCode, type[errors.OctavoError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
}


def kind_of(code: int) -> type[errors.OctavoError]:
    """The exception class of a gRPC status code; Internal where the table has none."""
    return next((kind for status, kind in _BY_STATUS.items() if status.value[0] == code), errors.Internal)


def _rich_status(error: grpc.aio.AioRpcError | grpc.Call) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def is_rich(error: grpc.aio.AioRpcError | grpc.Call) -> bool:
    """Whether a failed call carries a server's own account. Where it does not, its words are gRPC's."""
    return any(key == _DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def from_rpc_error(error: grpc.aio.AioRpcError | grpc.Call) -> errors.OctavoError:
    """The exception behind a failed call, rebuilt from its rich status where it carries one."""
    kind = _BY_STATUS.get(error.code(), errors.Internal)
    message = error.details() or error.code().name
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in _rich_status(error).details:
        detail.Unpack(info)
        detail.Unpack(retry)
    delay = retry.retry_delay.ToMilliseconds() / 1000 or None
    return kind(message, param=info.metadata.get("param") or None, retry_after=delay, code=info.reason or None)
