"""The front door: the `octavo` command, the Python client, batch and bench.

`octavo.Client` and `octavo.AsyncClient` are loaded when first used, so that the command starts without gRPC.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.client.aio import AsyncClient as AsyncClient
    from octavo.client.sync import Client as Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":
        from octavo.client.aio import AsyncClient

        return AsyncClient
    if name == "Client":
        from octavo.client.sync import Client

        return Client
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
