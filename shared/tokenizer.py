"""A model's tokenizer as plain files with a digest: what a worker publishes and a router loads. Imports no torch, no transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType

TOKENIZER_JSON = "tokenizer.json"
FILE_NAMES = (
    TOKENIZER_JSON,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
DIGEST_BYTES = 16


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
