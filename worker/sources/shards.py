"""Tensors of one or several safetensors files, mapped into memory and not copied."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from worker.sources.errors import SourceError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class SafetensorFiles:
    """All tensors of a directory by name. Opening reads only the headers; raises SourceError where they do not fit the index."""

    def __init__(self, directory: Path):
        index = _read_index(directory)
        self.paths = tuple(directory / name for name in sorted(set(index.values()))) if index else (_single(directory),)
        handles = {path.name: _open(path) for path in self.paths}
        self._holders = {name: handle for handle in handles.values() for name in handle.keys()}  # noqa: SIM118 - not a dict
        if index:
            _check_index(directory, index, handles)
            self._holders = {name: handles[file] for name, file in index.items()}

    def names(self) -> Collection[str]:
        return self._holders.keys()

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, as stored. KeyError names a missing one."""
        tensor: torch.Tensor = self._holders[name].get_tensor(name)
        return tensor

    def stored_dtype(self) -> str | None:
        """The dtype of the first matrix, as torch names it; None where there is none."""
        for name, holder in self._holders.items():
            if len(holder.get_slice(name).get_shape()) == 2:
                return str(self.tensor(name).dtype).removeprefix("torch.")
        return None


def _open(path: Path) -> Any:
    if not path.is_file():
        raise SourceError(f"{path}: missing, though {INDEX} names it")
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise SourceError(f"{path}: expected a whole safetensors file: {error}") from error


def _read_index(directory: Path) -> dict[str, str]:
    """Tensor name -> file name; empty without an index. A file's name with a path in it is refused: it could leave the directory."""
    path = directory / INDEX
    if not path.is_file():
        return {}
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{path}: expected JSON with a weight_map: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{path}: weight_map is empty; expected tensor names and their files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise SourceError(
                f"{path}: tensor {name} names the file {file!r}; expected a plain file name beside the index"
            )
    return weight_map


def _check_index(directory: Path, index: Mapping[str, str], handles: Mapping[str, Any]) -> None:
    held = {file: set(handle.keys()) for file, handle in handles.items()}
    for name, file in index.items():
        if name not in held[file]:
            raise SourceError(f"{directory / file}: tensor {name} is missing, though {INDEX} puts it there")


def _single(directory: Path) -> Path:
    found = sorted(directory.glob("*.safetensors"))
    if directory / SINGLE in found:
        return directory / SINGLE
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(f"{directory}: {len(found)} safetensors files and no {INDEX} to say which holds what")
    raise SourceError(_nothing_found(directory))


def _nothing_found(directory: Path) -> str:
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
    if not pickles:
        return f"{directory}: expected {SINGLE} or {INDEX}; found neither"
    return f"{directory}: {pickles[0]} is a pickle, which can run any code when it is read; expected safetensors: convert it first"
