"""One frozen dataclass per process is its whole configuration: flags, environment and YAML derive from its fields.

A flag beats the environment, which beats the YAML file, which beats the field's default. A field's metadata may hold
the flag's "help".
"""

import argparse
import dataclasses
import importlib.metadata
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")

# A number of bytes, written "4096", "64KiB" or "2GiB" (also KB, MB, GB, in powers of ten).
ByteSize = NewType("ByteSize", int)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class ConfigError(ValueError):
    """A value or a key that is wrong; the message names it."""


def version() -> str:
    """The installed distribution's version; "0+unknown" where the packages lie on the path without being installed."""
    try:
        return importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " KMGT".index(unit.upper() or " "))


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[Any, Any] = {bool: _bool, int: int, float: float, str: str, Path: Path, ByteSize: _size}


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _parse_as(hint: Any, text: str) -> Any:
    """Raises ValueError or KeyError where `text` is no `hint`."""
    if hint is type(None):
        return {"none": None, "": None}[text.lower()]
    if get_origin(hint) is Literal:
        return {str(choice): choice for choice in get_args(hint)}[text]
    if get_origin(hint) is tuple:
        return _list(text)
    return _PARSERS[hint](text)


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    names = {type(None): "none", ByteSize: "bytes", Path: "path"}
    return names.get(hint) or ("a,b,..." if get_origin(hint) is tuple else hint.__name__)


def wanted(hint: Any) -> str:
    """What a value of this type looks like, for people."""
    return "|".join(map(_wanted, _members(hint)))


def parse(hint: Any, text: str, key: str) -> Any:
    """`text` as a value of the type `hint`. Raises ConfigError naming `key`."""
    for member in sorted(_members(hint), key=lambda member: member is str):
        try:
            return _parse_as(member, text)
        except (ValueError, KeyError):
            continue
    raise ConfigError(f"{key}: {text!r} is not {wanted(hint)}")


def _yaml_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _from_yaml(path: str | None, hints: Mapping[str, Any]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold keys and values")
    unknown = [str(key) for key in content if str(key).replace("-", "_") not in hints]
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}")
    names = {key.replace("-", "_"): _yaml_text(value) for key, value in content.items()}
    return {name: parse(hints[name], text, f"{path}: {name}") for name, text in names.items()}


def _from_environ(environ: Mapping[str, str], prefix: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    keys = {name: prefix + name.upper() for name in hints}
    return {name: parse(hints[name], environ[key], key) for name, key in keys.items() if key in environ}


def _add_flag(parser: argparse.ArgumentParser, field: "dataclasses.Field[Any]", hint: Any, prefix: str) -> None:
    default = "required" if field.default is dataclasses.MISSING else f"default: {_shown(field.default, hint)}"
    text = f"{field.metadata.get('help', '')} ({default}; {prefix}{field.name.upper()})".replace("%", "%%").strip()
    flag = "--" + field.name.replace("_", "-")
    if hint is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
    elif get_origin(hint) is tuple:
        parser.add_argument(flag, action="append", metavar=wanted(hint), help=text)
    else:
        parser.add_argument(flag, metavar=wanted(hint), help=text)


def _shown(default: object, hint: Any) -> str:
    """As it would be given."""
    if ByteSize in _members(hint) and isinstance(default, int):
        return _bytes(default)
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return "none" if default is None else str(default) or "empty"


def _bytes(number: int) -> str:
    units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    return next((f"{number // size}{unit}" for unit, size in units if number and number % size == 0), str(number))


def _from_flags(given: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _yaml_text(value) for name, value in given.items() if value is not None}
    return {name: parse(hints[name], text, "--" + name.replace("_", "-")) for name, text in texts.items()}


def load(cls: type[T], argv: Sequence[str], *, prog: str, env_prefix: str, environ: Mapping[str, str]) -> T:
    """The configuration of a process. Wrong ones end the process with status 2 and a line that names the key.

    `env_prefix` ends in an underscore: OCTAVO_ROUTER_ gives OCTAVO_ROUTER_HTTP_PORT.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    hints = {field.name: get_type_hints(cls)[field.name] for field in fields}
    parser = argparse.ArgumentParser(prog=prog, description=(cls.__doc__ or "").strip(), allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{prog} {version()}")
    parser.add_argument("--config", metavar="path", help=f"a YAML file of these settings ({env_prefix}CONFIG)")
    for field in fields:
        _add_flag(parser, field, hints[field.name], env_prefix)
    given = vars(parser.parse_args(argv))
    path = given.pop("config") or environ.get(env_prefix + "CONFIG")
    try:
        values = {**_from_yaml(path, hints), **_from_environ(environ, env_prefix, hints), **_from_flags(given, hints)}
        missing = [f.name for f in fields if f.name not in values and f.default is dataclasses.MISSING]
        if missing:
            raise ConfigError(f"--{missing[0].replace('_', '-')} is required")
        return cls(**values)
    except ValueError as error:
        parser.error(str(error))
