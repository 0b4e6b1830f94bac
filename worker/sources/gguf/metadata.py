"""Typed reading of a GGUF file's key-value pairs. Source of the keys: the GGUF specification in ggml's docs/gguf.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.sources.errors import SourceError
from worker.sources.gguf.file import GgufFile


class Metadata:
    """The pairs of one file. A missing key, or one of another type, raises SourceError naming file and key."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = ""):
        """`prefix`, where given, stands before every key and a dot."""
        self.path = path
        self.prefix = prefix
        self._values = values

    def under(self, prefix: str) -> "Metadata":
        """The same file's keys below `prefix`."""
        return Metadata(self.path, self._values, prefix)

    def name(self, key: str) -> str:
        """The key as it stands in the file."""
        return f"{self.prefix}.{key}" if self.prefix else key

    def has(self, key: str) -> bool:
        return self.name(key) in self._values

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._value(key, default, str, "a string"))

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self._value(key, default, int, "an integer"))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._value(key, default, (int, float), "a number"))

    def flag(self, key: str, *, default: bool) -> bool:
        return bool(self._value(key, default, bool, "a boolean"))

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def items(
        self, key: str, default: Sequence[Any] | None = None, *, of: type | tuple[type, ...] = object
    ) -> Sequence[Any]:
        """An array, all of whose elements are `of` one type."""
        value: Sequence[Any] = self._value(key, default, (list, tuple), "an array")
        wrong = next((each for each in value if not isinstance(each, of)), None) if of is not object else None
        if wrong is not None:
            raise SourceError(f"{self.path}: key {self.name(key)} holds {wrong!r:.60}, which is of the wrong type")
        return value

    def _value(self, key: str, default: Any, kinds: type | tuple[type, ...], wanted: str) -> Any:
        name = self.name(key)
        value = self._values.get(name, default)
        if value is None:
            raise SourceError(f"{self.path}: key {name} is missing; expected {wanted}")
        if not isinstance(value, kinds):
            raise SourceError(f"{self.path}: key {name} is {value!r:.60}; expected {wanted}")
        return value


def read_metadata(file: GgufFile) -> Metadata:
    """The file's pairs. SourceError where it is one piece of a split model."""
    metadata = Metadata(file.path, file.values)
    pieces = metadata.integer("split.count", 1)
    if pieces > 1:
        raise SourceError(f"{file.path}: one of {pieces} pieces of a split model; expected one file: merge them first")
    return metadata
