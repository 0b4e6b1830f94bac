"""`octavo chat`: a conversation in the terminal, over gRPC."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import add_api_key, real, target, whole
from octavo.cli.reach import reaching

if TYPE_CHECKING:
    from octavo.client.requests import Options
    from octavo.client.sync import Client, Stream

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=f"Talk to a model that a router serves. {HELP}. Fed by a pipe, it fails in the end where an answer did.",
    )
    parser.add_argument(
        "--target", type=target, default="127.0.0.1:50051", help="the router's gRPC address (%(default)s)"
    )
    add_api_key(parser)
    parser.add_argument("--model", default="", help="needed where several are served")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--temperature", type=real(0, 2))
    parser.add_argument("--top-p", type=real(0, 1))
    parser.add_argument("--max-tokens", type=whole(1))
    parser.add_argument("--seed", type=whole(0, (1 << 64) - 1))
    parser.set_defaults(run=run, takes_rest=False)


def _options(arguments: argparse.Namespace) -> "Options":
    from octavo.client.requests import Options

    given = {name: getattr(arguments, name) for name in ("temperature", "top_p", "max_tokens", "seed")}
    options: Options = {}
    options.update({name: value for name, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    return options


@contextmanager
def _stopping(stream: "Stream") -> Iterator[threading.Event]:
    """Ctrl-C ends the stream, and the event tells of it. A KeyboardInterrupt would be lost where it is raised in a destructor."""
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        stream.close()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


class Conversation:
    """Turns so far, and how the next answer is made. An answer that was stopped stays, as far as it came."""

    def __init__(self, client: "Client", model: str, system: str | None, options: "Options"):
        self._client = client
        self._model = model
        self._options = options
        self._start = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = [*self._start]

    def reset(self) -> None:
        """Forgets all but the system's message."""
        self.messages = [*self._start]

    def ask(self, text: str) -> None:
        """Prints the answer as it comes. Raises OctavoErrors; a failed turn is forgotten."""
        from shared.errors import Cancelled

        turn = {"role": "user", "content": text}
        pieces: list[str] = []
        stream = self._client.chat([*self.messages, turn], model=self._model, stream=True, **self._options)
        with stream, _stopping(stream) as stopped:
            try:
                for delta in stream:
                    pieces.append(delta.text)
                    print(delta.text, end="", flush=True)
            except Cancelled:
                if not stopped.is_set():
                    raise
            if stopped.is_set():
                print(" [stopped]", end="")
        print()
        self.messages += [turn, {"role": "assistant", "content": "".join(pieces)}]


def _read() -> str | None:
    """A line from the user; None at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""


def talk(conversation: Conversation) -> int:
    """Reads, answers, repeats, until the input ends; how many answers failed."""
    from shared.errors import OctavoError

    failed = 0
    while (line := _read()) not in (None, "/quit"):
        if line == "/reset":
            conversation.reset()
        elif line == "/help":
            print(HELP)
        elif line:
            try:
                conversation.ask(line)
            except OctavoError as error:
                failed += 1
                print(f"octavo: {error.message}", file=sys.stderr)
    return failed


def run(arguments: argparse.Namespace) -> int:
    """Fails at once where no router answers, and in the end where an answer failed that no one at a terminal has seen to."""
    from octavo.client.sync import Client

    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives input() a history and editing keys

        print(HELP)
    with Client(arguments.target, api_key=arguments.api_key) as client:
        with reaching(arguments.target):
            client.models()
        failed = talk(Conversation(client, arguments.model, arguments.system, _options(arguments)))
    return 1 if failed and not sys.stdin.isatty() else 0
