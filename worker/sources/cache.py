"""Where Octavo keeps what it can make again: converted models, digests, tokenizers."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """$OCTAVO_CACHE, else ~/.cache/octavo. It need not exist. Raises OSError for a user who has no home directory."""
    chosen = environ.get("OCTAVO_CACHE")
    try:
        return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "octavo"
    except RuntimeError as error:
        raise OSError(f"no place for the cache (set OCTAVO_CACHE): {error}") from error
