"""A model in a Hugging Face directory: config.json, safetensors, tokenizer files."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer

from shared.tokenizer import TOKENIZER_JSON, TokenizerBundle
from worker.sources.config import eos_token_ids, normalise
from worker.sources.digest import revision
from worker.sources.errors import SourceError
from worker.sources.shards import SafetensorFiles

# Any of these makes a tokenizer that transformers can turn into tokenizer.json.
_SLOW_TOKENIZERS = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "vocab.json", "vocab.txt")


class DirectoryCheckpoint:
    """A `Checkpoint` over a Hugging Face directory. Raises SourceError where files are missing, broken or pickles."""

    def __init__(self, directory: Path, cache: Path):
        config = normalise(read_json(directory / "config.json"))
        self._files = SafetensorFiles(directory)
        stored = self._files.stored_dtype()
        self.config: Mapping[str, Any] = config if "dtype" in config or stored is None else {**config, "dtype": stored}
        self.revision = revision(self.config, self._files.paths, cache)
        self.eos_token_ids = eos_token_ids(_generation_config(directory), self.config)

    def names(self) -> Collection[str]:
        return self._files.names()

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor mapped from its file: reading it pages it in. KeyError names a missing one."""
        return self._files.tensor(name)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. SourceError names the file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SourceError(f"{path}: missing; expected a Hugging Face model directory") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: expected JSON: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _generation_config(directory: Path) -> dict[str, Any]:
    path = directory / "generation_config.json"
    return read_json(path) if path.is_file() else {}


def directory_tokenizer(directory: Path) -> TokenizerBundle:
    """The directory's tokenizer. One of the older kinds (sentencepiece, vocab and merges) is converted by transformers."""
    if (directory / TOKENIZER_JSON).is_file():
        bundle = TokenizerBundle.from_directory(directory)
        _check_tokenizer(directory / TOKENIZER_JSON, bundle.files[TOKENIZER_JSON])
        return bundle
    if not any((directory / name).is_file() for name in _SLOW_TOKENIZERS):
        raise SourceError(f"{directory}: expected {TOKENIZER_JSON} or one of {', '.join(_SLOW_TOKENIZERS)}; found none")
    return _converted_tokenizer(directory)


def _check_tokenizer(path: Path, content: bytes) -> None:
    """Raises SourceError where no router could load it: they would all turn away, and this worker serve nobody."""
    try:
        Tokenizer.from_buffer(content)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - the library's panics are no Exceptions
        raise SourceError(f"{path}: expected the tokenizers library's format: {error!s:.200}") from None


def _converted_tokenizer(directory: Path) -> TokenizerBundle:
    from transformers import AutoTokenizer  # slow to import, and most models do not need it

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever a converter raises, it is this directory's tokenizer that is at fault
        raise SourceError(f"{directory}: no {TOKENIZER_JSON}, and transformers cannot make one: {error}") from error
    with TemporaryDirectory() as made:
        tokenizer.save_pretrained(made)
        files = dict(TokenizerBundle.from_directory(Path(made)).files)
    generation = directory / "generation_config.json"
    extra = {generation.name: generation.read_bytes()} if generation.is_file() else {}
    return TokenizerBundle.from_files({**files, **extra})
