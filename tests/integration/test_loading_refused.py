"""What a worker says when the kernels that it was told to use cannot be had: one line for whoever started it, and no trace."""

import os
from pathlib import Path

import pytest

from tests.fakes.tiny_models import write_tiny_llama
from worker.config import WorkerConfig
from worker.loading import LoadFailed, load


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment as it was: loading tells OpenMP its threads."""
    for name, value in (("OMP_NUM_THREADS", "2"), ("OMP_WAIT_POLICY", "PASSIVE")):
        monkeypatch.setenv(name, os.environ.get(name, value))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.mark.parametrize("name", ["cpu_isa", "backend"])
def test_instructions_and_backends_that_are_not_there_are_listed(name: str, model: str) -> None:
    with pytest.raises(LoadFailed, match=r"'abacus'.*there are: auto, "):
        load(WorkerConfig(model=model, **{name: "abacus"}))


def test_compiled_kernels_that_were_asked_for_need_a_compiler(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(LoadFailed, match=r"no C\+\+ compiler"):
        load(WorkerConfig(model=model, backend="cpu"))


def test_triton_needs_a_gpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(LoadFailed, match="finds no GPU"):
        load(WorkerConfig(model=model, backend="triton"))
