"""The key that a client sends with each call: given, or the environment's."""

import os

API_KEY_VARIABLE = "OCTAVO_API_KEY"

Metadata = tuple[tuple[str, str], ...]


def metadata_of(api_key: str | None) -> Metadata:
    """Of each call: `api_key`, or $OCTAVO_API_KEY where that is None; nothing where there is no key."""
    key = os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key
    return (("authorization", f"Bearer {key}"),) if key else ()
