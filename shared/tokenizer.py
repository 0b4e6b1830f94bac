"""A model's tokenizer as plain files with a digest: what a worker publishes and a router loads. Imports no torch, no transformers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shared.decoder import Rules, read_rules

TOKENIZER_JSON = "tokenizer.json"
CONFIGURATIONS = ("special_tokens_map.json", "tokenizer_config.json")  # the later one wins
FILE_NAMES = (
    TOKENIZER_JSON,
    *CONFIGURATIONS,
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
DIGEST_BYTES = 16
MAX_BYTES = 256 << 20  # of all files, which routers fetch


class TokenizerFilesError(ValueError):
    """The files do not make a tokenizer; the message names the one at fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerBundle:
    """The files by name, and a digest over names and contents: equal digests mean equal tokenizers and templates.

    Holds `tokenizer.json` always, and no name outside FILE_NAMES, so that writing it out can reach nothing else.
    Made by `from_files` and `from_directory`.
    """

    files: Mapping[str, bytes]
    digest: str

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "TokenizerBundle":
        """Raises TokenizerFilesError where tokenizer.json is missing or a name is not one of FILE_NAMES."""
        strange = sorted(set(files) - set(FILE_NAMES))
        if strange:
            raise TokenizerFilesError(f"not a tokenizer's file: {strange[0]!r}; expected only {', '.join(FILE_NAMES)}")
        if TOKENIZER_JSON not in files:
            raise TokenizerFilesError(f"{TOKENIZER_JSON} is missing; found {', '.join(sorted(files)) or 'nothing'}")
        ordered = {name: files[name] for name in sorted(files)}
        return cls(files=MappingProxyType(ordered), digest=digest(ordered))

    @classmethod
    def from_directory(cls, directory: Path) -> "TokenizerBundle":
        """Read those of FILE_NAMES that `directory` holds. Raises TokenizerFilesError without a tokenizer.json."""
        found = {name: (directory / name).read_bytes() for name in FILE_NAMES if (directory / name).is_file()}
        if TOKENIZER_JSON not in found:
            raise TokenizerFilesError(f"{directory / TOKENIZER_JSON} is missing")
        return cls.from_files(found)

    def write_to(self, directory: Path) -> Path:
        """Write the files into `directory`, which is made where it is missing, and return it."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (directory / name).write_bytes(content)
        return directory


def digest(files: Mapping[str, bytes]) -> str:
    """Hex BLAKE2b-128 over names and contents in the order of names, each with its length so that none runs into the next."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(files):
        for field in (name.encode(), files[name]):
            state.update(len(field).to_bytes(8, "little"))
            state.update(field)
    return state.hexdigest()


def json_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The object in a file; an empty one where that is missing or holds something else. Raises TokenizerFilesError for what is no JSON."""
    try:
        loaded = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError) as error:
        raise TokenizerFilesError(f"{name}: expected JSON: {error}") from error
    return loaded if isinstance(loaded, dict) else {}


def decoder_rules(files: Mapping[str, bytes]) -> Rules:
    """How the tokenizer's tokens are spelled. Raises TokenizerFilesError naming what of tokenizer.json is not served."""
    try:
        return read_rules(json_object(files, TOKENIZER_JSON).get("decoder"))
    except (AttributeError, LookupError, TypeError, RecursionError, ValueError) as error:
        raise TokenizerFilesError(f"{TOKENIZER_JSON}: {error}") from error


def check_servable(files: Mapping[str, bytes]) -> None:
    """Raises TokenizerFilesError naming the file that no router could load: they would all turn away, and its worker serve nobody.

    Whether the tokenizers library takes tokenizer.json is not looked at here.
    """
    total = sum(map(len, files.values()))
    if total > MAX_BYTES:
        raise TokenizerFilesError(f"the tokenizer's files are larger than {MAX_BYTES} bytes: {total}")
    decoder_rules(files)
    for name in CONFIGURATIONS:
        json_object(files, name)
