"""What is wrong with a body, in this API's words: pydantic's own name types and classes of Python."""

from collections.abc import Mapping, Sequence
from typing import Any

# pydantic's type of failure -> what the parameter must be.
_WANTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_type": "a string",
    "string_unicode": "text in Unicode, without half of a surrogate pair",
}


def _either(wanted: Sequence[str]) -> str:
    *others, last = wanted
    return f"{', '.join(others)} or {last}" if others else last


def message(failures: Sequence[Mapping[str, Any]], name: str) -> str:
    """The sentence about parameter `name`, of which each of `failures` is one reason why nothing that it may be fits."""
    first = failures[0]
    wanted = [_WANTED.get(failure["type"], "") for failure in failures]
    if all(wanted):
        return f"{name} must be {_either(tuple(dict.fromkeys(wanted)))}"
    match first:
        case {"type": "missing"}:
            return f"{name} is required"
        case {"type": "too_long", "ctx": {"max_length": most}}:
            return f"{name} takes at most {most} entries"
    return f"{name}: {', or '.join(dict.fromkeys(failure['msg'].removesuffix('.') for failure in failures))}"
