"""The key that a client sends with each call: given, or the environment's."""

import os

from shared.errors import InvalidRequest

API_KEY_VARIABLE = "OCTAVO_API_KEY"

Metadata = tuple[tuple[str, str], ...]


def key_of(api_key: str | None) -> str:
    """`api_key`, or $OCTAVO_API_KEY where that is None; "" where there is none.

    Raises InvalidRequest for what no header can hold: the libraries below would say so with the key in their words.
    """
    key = (os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key).strip()
    if not (key.isascii() and key.isprintable()):
        raise InvalidRequest("the API key holds a character that no header can", param="api_key")
    return key


def metadata_of(api_key: str | None) -> Metadata:
    """Of each call; nothing where there is no key. Raises InvalidRequest, see `key_of`."""
    key = key_of(api_key)
    return (("authorization", f"Bearer {key}"),) if key else ()
