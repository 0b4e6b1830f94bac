"""What every method of the public API does the same: errors as rich statuses, and who calls."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from router.edge.credentials import API_KEY, AUTHORIZATION, credentials_of
from router.edge.gate import Gate
from router.tenancy.caller import Caller
from shared import rpc
from shared.errors import Internal, OctavoError

_LOG = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def told(context: Context) -> AsyncIterator[None]:
    """Ends the call with the rich status of whatever the block raises."""
    try:
        yield
    except OctavoError as error:
        await rpc.abort(context, error)
    except grpc.aio.AbortError:
        raise
    except Exception:  # noqa: BLE001 - logged, and told as Internal
        _LOG.exception("a call failed")
        await rpc.abort(context, Internal("internal error"))


def metadata(context: Context, name: str) -> list[str]:
    """All values under this name."""
    given = context.invocation_metadata() or ()
    return [value for key, value in given if key == name and isinstance(value, str)]


def caller_of(gate: Gate, context: Context) -> Caller:
    """By the call's credentials. Raises Unauthenticated."""
    return gate.authenticate(credentials_of(metadata(context, AUTHORIZATION), metadata(context, API_KEY)))
