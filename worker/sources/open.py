"""Open a model, wherever it is: a directory, a GGUF file, or a name on the Hugging Face Hub."""

import re
from dataclasses import dataclass
from pathlib import Path

from shared.tokenizer import TokenizerBundle
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
    kept = cache or cache_directory()
    if path.is_dir():
        return Source(path=path, checkpoint=DirectoryCheckpoint(path, kept), tokenizer=directory_tokenizer(path))
    if path.suffix == ".gguf":
        checkpoint, tokenizer = open_gguf(path, kept)
        return Source(path=path, checkpoint=checkpoint, tokenizer=tokenizer)
    raise SourceError(f"{path}: expected a Hugging Face directory or a .gguf file")


def _locate(path_or_id: str) -> Path:
    path = Path(path_or_id).expanduser()
    if path.exists():
        return path
    looks_local = path_or_id.startswith((".", "/", "~")) or path.suffix in (".gguf", ".safetensors", ".bin")
    if looks_local or not _HUB_ID.fullmatch(path_or_id):
        raise SourceError(f"{path_or_id}: no such file or directory")
    return download(path_or_id)
