"""Canonical names: `name`, shared by all tenants, or `tenant/name`."""

import re

from shared.wire.adapters import MAX_NAME
from worker.adapters.errors import AdapterInvalid

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]*")


def is_part(text: str) -> bool:
    """Whether it may stand for a tenant or a name: letters, digits and `._@+-`, the first a letter, a digit or `_`."""
    return _PART.fullmatch(text) is not None


def checked(name: str) -> str:
    """The name. Raises AdapterInvalid where it is none: it becomes a path, so it can hold no way out of a directory."""
    parts = name.split("/")
    if len(name) > MAX_NAME or len(parts) > 2 or not all(map(is_part, parts)):
        raise AdapterInvalid(
            f"{name[:MAX_NAME]!r} is no adapter's name: `name` or `tenant/name`, each of letters, digits and ._@+-, "
            f"not beginning with a sign, {MAX_NAME} characters at most",
            param="name",
        )
    return name
