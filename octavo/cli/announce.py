"""What `octavo serve` says: text for people, or JSON lines for programs."""

import json
import sys
import time
from dataclasses import asdict
from typing import Protocol

from octavo.supervise.stack import Endpoints
from shared.supervise.supervised import Report


class Announcer(Report, Protocol):
    """A Report that also tells where the stack listens."""

    def ready(self, model: str, endpoints: Endpoints) -> None:
        """Everything is up."""


def _log(name: str, line: str) -> None:
    sys.stderr.write(f"[{name}] {line}\n")
    sys.stderr.flush()


def curl(model: str, http: str) -> str:
    """A chat completion to paste into a shell."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 64}
    )
    return f"curl http://{http}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


class Text:
    """One line a state; children's logs on stderr."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def state(self, text: str) -> None:
        """A step on the way up or down."""
        print(f"octavo: {text}", flush=True)

    def notice(self, text: str) -> None:
        """Something that the user should know of."""
        print(f"octavo: {text}", file=sys.stderr, flush=True)

    def log(self, name: str, line: str) -> None:
        """A line that a child wrote."""
        _log(name, line)

    def ready(self, model: str, endpoints: Endpoints) -> None:
        """Where it listens, and what to try."""
        self.state(f"ready in {time.monotonic() - self._began:.1f} s")
        print(f"\n  {model}\n  HTTP  http://{endpoints.http}/v1   (docs: http://{endpoints.http}/docs)")
        print(f"  gRPC  {endpoints.grpc}\n\n  {curl(model, endpoints.http)}\n", flush=True)


class Json:
    """JSON lines on stdout, one an event; children's logs on stderr."""

    def _tell(self, **event: object) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    def state(self, text: str) -> None:
        """A step on the way up or down."""
        self._tell(event="state", text=text)

    def notice(self, text: str) -> None:
        """Something that the user should know of."""
        self._tell(event="notice", text=text)

    def log(self, name: str, line: str) -> None:
        """A line that a child wrote."""
        _log(name, line)

    def ready(self, model: str, endpoints: Endpoints) -> None:
        """Where it listens, and its processes."""
        self._tell(event="ready", model=model, **asdict(endpoints))
