"""Stacks that the end-to-end tests share."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import gguf
import pytest

from tests.e2e.stack import RunningStack
from tests.fakes.tiny_models import write_tiny_llama

SMALL = ("--threads", "1", "--kv-memory", "16MiB", "--max-model-len", "512", "--check-integrity")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that answers in no time."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def stack(tiny_model: Path) -> Iterator[RunningStack]:
    """A router and two workers."""
    running = RunningStack(tiny_model, workers=2, worker_arguments=SMALL)
    yield running
    assert running.stop() == 0, running.said()


@pytest.fixture
def own_stack(tiny_model: Path) -> Iterator[RunningStack]:
    """A router and two workers that a test may break."""
    running = RunningStack(tiny_model, workers=2, worker_arguments=SMALL)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def gguf_read_once() -> Iterator[None]:
    """transformers takes a GGUF file's metadata apart anew for the configuration, the tensors and the tokenizer: seconds each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", lru_cache(maxsize=1)(gguf.GGUFReader))
        yield


@pytest.fixture(scope="session")
def demo_stack(demo_model: Path) -> Iterator[RunningStack]:
    """A router and one worker that serve the demo model, with every default."""
    running = RunningStack(demo_model, workers=1)
    yield running
    assert running.stop() == 0, running.said()
