"""Why the stream to a worker ended or none began, for callers and for the log."""

import asyncio

import grpc.aio

from router.fleet.tokenizers import BadTokenizer
from shared import rpc

# What callers hear of a worker that is lost. The log has gRPC's words and the worker's name.
CUT = "the connection to the worker that ran this was lost"
SILENT = "the worker that ran this stopped answering"
HUNG = "the worker that ran this makes no progress"
ENDED = "the worker that ran this has stopped"


class LinkLost(Exception):
    """The stream is over; the message says why, in words that callers may hear too."""


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in _causes(inner)]
    return [error]


def reason_of(error: BaseException) -> str:
    """The same for the same reason, whatever numbers and addresses gRPC says beside it."""
    cause = _causes(error)[0]
    return cause.code().name if isinstance(cause, grpc.aio.AioRpcError) and not says_so(error) else describe(error)


def says_so(error: BaseException) -> bool:
    """Whether it is a worker's own account of why it takes nothing: it still loads, as a rule."""
    cause = _causes(error)[0]
    return isinstance(cause, grpc.aio.AioRpcError) and rpc.is_rich(cause)


def describe(error: BaseException) -> str:
    """Why a stream ended, in a line for the log."""
    cause = _causes(error)[0]
    if isinstance(cause, grpc.aio.AioRpcError):
        said = f"{cause.code().name}: {cause.details()}"
        return f"what listens there is no worker ({said})" if cause.code() is grpc.StatusCode.UNIMPLEMENTED else said
    if type(cause) is TimeoutError:
        return "no answer in time"
    return str(cause) or type(cause).__name__


def told(error: BaseException) -> str:
    """What callers hear of it: our words, nothing of what is inside."""
    cause = _causes(error)[0]
    return str(cause) if isinstance(cause, LinkLost) else CUT


def is_fault(error: BaseException) -> bool:
    """Whether any of its causes is something that a worker's end does not explain."""
    expected = (grpc.aio.AioRpcError, LinkLost, BadTokenizer, TimeoutError, ValueError, asyncio.InvalidStateError)
    return not all(isinstance(cause, expected) for cause in _causes(error))
