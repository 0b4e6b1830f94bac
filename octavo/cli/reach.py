"""What a command says where the address that it was given answers nothing, something else, or not without a key."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import Unauthenticated, Unavailable

PUBLIC = "--target is the router's public gRPC address, not that of HTTP or of operators"
OPERATORS = "--target is the router's --admin-grpc-listen, not where it serves the public"


WORKER = "with --direct, WORKER is where octavo-worker listens: its --host and --port"


@contextmanager
def reaching(target: str, hint: str = PUBLIC) -> Iterator[None]:
    """Errors of a connection name the address and tell which is meant; those of a key, where commands take one from."""
    from octavo.client.failures import NotServed, Unreached

    try:
        yield
    except (NotServed, Unreached) as error:
        raise Unavailable(f"{target}: {error.message} ({hint})") from error
    except Unauthenticated as error:
        raise Unauthenticated(f"{error.message} (commands take it from $OCTAVO_API_KEY or --api-key)") from error
