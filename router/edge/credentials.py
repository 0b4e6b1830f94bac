"""The key that a call brings, from where keys may stand: `Authorization: Bearer KEY`, or `x-api-key: KEY`, in headers or metadata alike."""

from collections.abc import Sequence

from shared.errors import InvalidRequest

AUTHORIZATION = "authorization"
API_KEY = "x-api-key"

_MOST = 512  # characters; more is no key of anybody's


def credentials_of(authorization: Sequence[str], api_key: Sequence[str]) -> str | None:
    """The one key among the values of both headers; None where there is none. Raises InvalidRequest where they differ.

    What is no bearer's key is told apart from no key at all, and from a right one: it is "".
    """
    given = {*map(_bearer, authorization), *(value.strip() for value in api_key)}
    if len(given) > 1:
        raise InvalidRequest("more than one API key was sent", param=AUTHORIZATION)
    key = next(iter(given), None)
    return None if key is None else key[:_MOST]


def _bearer(value: str) -> str:
    scheme, _, rest = value.strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else ""
