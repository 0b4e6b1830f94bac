"""The process in which a model's template runs, because nothing else can stop one: a single step of it (a product of large numbers, a
comparison of nested lists, a filter that pads) may take hours or all memory, and lets no other thread run meanwhile.

    python -P -m router.text.template_child

Standard input is a socket. Lines of JSON come, and one goes back for each: first {source, names, cpu_seconds}, answered by {} or
{fault}, then {messages, add_generation_prompt}, answered by {text} or {refused}. The kernel ends what takes longer than `cpu_seconds`
for a line (and up to one second more), and refuses memory beyond MAX_BYTES.
"""

import json
import resource
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO

import jinja2

from router.request import Message
from router.text.template import ChatTemplate
from shared.errors import InvalidRequest

MAX_BYTES = 1 << 30  # of address space, Python's own included


def _limit(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _restart_clock(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + 1 + seconds)


def _compiled(said: Mapping[str, Any]) -> tuple[ChatTemplate | None, str]:
    """The template, or what is wrong with it. Python compiles what Jinja makes of it, and has complaints of its own."""
    try:
        return ChatTemplate(said["source"], said["names"]), ""
    except jinja2.TemplateSyntaxError as error:
        return None, f"line {error.lineno}: {error.message}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the template is at fault
        return None, str(error) or type(error).__name__


def _rendered(template: ChatTemplate, said: Mapping[str, Any]) -> dict[str, str]:
    turns = [Message(**turn) for turn in said["messages"]]
    try:
        return {"text": template.render(turns, add_generation_prompt=said["add_generation_prompt"])}
    except InvalidRequest as error:
        return {"refused": error.message}


def _tell(stream: BinaryIO, answer: Mapping[str, str]) -> None:
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.flush()


def serve(stream: BinaryIO) -> None:
    """Until the other end closes, or the template is none."""
    opening = json.loads(stream.readline())
    _restart_clock(opening["cpu_seconds"])
    template, fault = _compiled(opening)
    _tell(stream, {"fault": fault} if template is None else {})
    while template is not None and (line := stream.readline()):
        _restart_clock(opening["cpu_seconds"])
        _tell(stream, _rendered(template, json.loads(line)))


def main() -> None:
    """Serves whoever started it."""
    _limit(resource.RLIMIT_AS, MAX_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    with socket.socket(fileno=0) as peer, peer.makefile("rwb") as stream:
        serve(stream)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
