"""What every test may ask for."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of prompts, goldens and small models that lies beside the checkout, or where OCTAVO_SHARED says."""
    folder = Path(os.environ.get("OCTAVO_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; OCTAVO_SHARED names its parent")
    return folder
