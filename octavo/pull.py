"""Fetch a model into the cache. Imports torch only where it must convert."""

from collections.abc import Callable
from pathlib import Path

from worker.sources.hub import download

DEMO = "demo"


def pull(name: str, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The directory of model `name`: `demo`, or a Hub id. Fetched where it is missing; `progress` gets lines of text.

    The demo lies under `cache_dir`; the Hub's models lie in the Hub's own cache, which other tools share.
    Raises OctavoError, which says what could not be had.
    """
    if name == DEMO:
        from octavo.demo import pull_demo

        return pull_demo(cache_dir, progress)
    progress(f"fetching {name} from the Hugging Face Hub")
    path = download(name)
    progress(f"{name} is in {path}")
    return path
