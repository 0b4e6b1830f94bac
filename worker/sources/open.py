"""Open a model, wherever it is: a directory, a GGUF file, or a name on the Hugging Face Hub."""

import re
from dataclasses import dataclass
from pathlib import Path

from shared.tokenizer import TokenizerBundle, TokenizerFilesError, check_servable
from worker.models.checkpoint import Checkpoint
from worker.sources.cache import cache_directory
from worker.sources.errors import SourceError
from worker.sources.gguf.source import open_gguf
from worker.sources.hf import DirectoryCheckpoint, directory_tokenizer
from worker.sources.hub import download

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A model ready to be built, and its tokenizer as files. `path` is where it lies on this machine."""

    path: Path
    checkpoint: Checkpoint
    tokenizer: TokenizerBundle


def open_checkpoint(path_or_id: str, *, cache: Path | None = None) -> Source:
    """Open a Hugging Face directory, a `.gguf` file, or a Hub id (downloaded first). `cache` defaults to `cache_directory()`.

    Weights are mapped, not read (but for their digest, the first time). Raises SourceError, which says what is wrong where.
    """
    path = _locate(path_or_id)
    checkpoint, tokenizer = _opened(path, cache or cache_directory())
    try:
        check_servable(tokenizer.files)
    except TokenizerFilesError as error:
        raise SourceError(f"{path}: {error}") from error
    return Source(path=path, checkpoint=checkpoint, tokenizer=tokenizer)


def _opened(path: Path, cache: Path) -> tuple[Checkpoint, TokenizerBundle]:
    if path.is_dir():
        return DirectoryCheckpoint(path, cache), directory_tokenizer(path)
    if path.suffix == ".gguf":
        return open_gguf(path, cache)
    raise SourceError(f"{path}: expected a Hugging Face directory or a .gguf file")


def _locate(path_or_id: str) -> Path:
    path = Path(path_or_id).expanduser()
    if path.exists():
        return path
    looks_local = path_or_id.startswith((".", "/", "~")) or path.suffix in (".gguf", ".safetensors", ".bin")
    if looks_local or not _HUB_ID.fullmatch(path_or_id):
        raise SourceError(f"{path_or_id}: no such file or directory")
    return download(path_or_id)
