"""The public API's typed error, to and from the exception tree. A session's events tell what a rich status does."""

import grpc

from protos import inference_pb2 as pb
from shared import errors, rpc


def error_to_pb(error: errors.OctavoError) -> pb.Error:
    """The error as an event of a session tells it."""
    status = grpc.StatusCode[errors.answer(error).grpc]
    return pb.Error(
        grpc_code=status.value[0],
        code=error.code,
        message=error.message,
        param=error.param or "",
        retry_after_ms=error.retry_after_ms,
    )


def error_from_pb(error: pb.Error) -> errors.OctavoError:
    """The exception behind an event's error, as `rpc.from_rpc_error` gives it for a failed call."""
    kind = rpc.kind_of(error.grpc_code)
    retry = error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None
    return kind(error.message, param=error.param or None, retry_after=retry, code=error.code or None)
