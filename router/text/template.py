"""Chat templates: Jinja, sandboxed, with the names that transformers gives them (source: its "Writing a chat template" guide).

A template comes with the model, from a worker. It runs without attribute access to Python's inside, and cannot change what it is given.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from router.request import Message
from router.text.bounds import BoundedEnvironment
from shared.errors import InvalidRequest

MAX_RENDERED = 4 << 20  # characters
_MAX_REASON = 300  # characters told of what a template raised, which may be the conversation itself

# What a template raises that is asked for something it does not do, be it on purpose or not.
_REFUSALS = (
    jinja2.TemplateError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class _GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON as it is: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _environment() -> BoundedEnvironment:
    extensions: list[str | type[Extension]] = [_GenerationBlock, "jinja2.ext.loopcontrols"]
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One model's template. `names` are the special tokens' strings that it may use: bos_token, eos_token, ..."""

    def __init__(self, source: str, names: Mapping[str, str]):
        """Raises jinja2.TemplateSyntaxError where `source` is no template."""
        self._environment = _environment()
        self._template = self._environment.from_string(source)
        self._names = dict(names)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool, param: str = "messages") -> str:
        """The prompt's text. Raises InvalidRequest naming `param` where the template refuses the messages or fails on them."""
        turns = [_turn(message) for message in messages]
        try:
            with self._environment.bounded():
                return self._render(
                    messages=turns, tools=None, documents=None, add_generation_prompt=add_generation_prompt
                )
        except _REFUSALS as error:
            raise InvalidRequest(
                f"the model's chat template refuses this conversation: {str(error)[:_MAX_REASON]}", param=param
            ) from error

    def _render(self, **given: Any) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(**given, **self._names):
            size += len(piece)
            if size > MAX_RENDERED:
                raise jinja2.TemplateError(f"the rendered prompt is longer than {MAX_RENDERED} characters")
            pieces.append(piece)
        return "".join(pieces)


def _turn(message: Message) -> dict[str, str]:
    turn = {"role": message.role, "content": message.content}
    return turn | {"name": message.name} if message.name else turn
