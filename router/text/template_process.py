"""A model's template in a process of its own, started when it is first needed and again whenever it has ended."""

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from router.request import Message
from shared.errors import Internal, InvalidRequest

CPU_SECONDS = 3  # of one rendering; a template is asked to end before
MAX_SECONDS = 20.0  # for an answer, however slow the machine; the process itself is bounded in CPU time
_COMMAND = (sys.executable, "-P", "-m", "router.text.template_child")
# What the kernel ends a process by that takes too much, or that its own code breaks.
_ITS_OWN_DOING = (signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)

_LOG = logging.getLogger(__name__)


class _TooMuch(Exception):
    """The process ended, or had to be ended, because of what it was asked."""


class _Gone(Exception):
    """The process ended, for reasons that are not its own as far as is known."""


class _Child:
    """One run of the process. Used by one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                _COMMAND, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )
        ours.settimeout(MAX_SECONDS)
        self._stream = ours.makefile("rwb")
        self.pid = self._process.pid
        self.end = weakref.finalize(self, _end, self._process, ours)

    def ask(self, question: Mapping[str, Any]) -> dict[str, str]:
        """Its answer. Raises _TooMuch or _Gone where there will be none."""
        try:
            self._stream.write(json.dumps(question).encode() + b"\n")
            self._stream.flush()
            if line := self._stream.readline():
                answer: dict[str, str] = json.loads(line)
                return answer
        except TimeoutError:
            self._process.kill()
            raise _TooMuch from None
        except OSError:
            pass  # it has ended: why, its status tells
        raise _TooMuch if -self._process.wait(MAX_SECONDS) in _ITS_OWN_DOING else _Gone


def _end(process: "subprocess.Popen[bytes]", peer: socket.socket) -> None:
    peer.close()
    process.kill()
    process.wait()


class TemplateProcess:
    """One model's template. `names` are the special tokens' strings that it may use. May be used from several threads at a time."""

    def __init__(self, source: str, names: Mapping[str, str], *, cpu_seconds: int = CPU_SECONDS):
        self._opening = {"source": source, "names": dict(names), "cpu_seconds": cpu_seconds}
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._fault = ""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool, param: str = "messages") -> str:
        """The prompt's text. Raises InvalidRequest naming `param` where the template is none, refuses the messages, or takes too much."""
        turns = [asdict(message) for message in messages]
        answer = self._answer({"messages": turns, "add_generation_prompt": add_generation_prompt})
        if "fault" in answer:
            raise InvalidRequest(f"this model's chat template cannot be used: {answer['fault']}", param=param)
        if "refused" in answer:
            raise InvalidRequest(answer["refused"], param=param)
        return answer["text"]

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        return self._child.pid if self._child else None

    def _answer(self, question: Mapping[str, Any]) -> dict[str, str]:
        """Asks again where a process is gone that had done nothing wrong: the system may end any, when memory is short or at will."""
        with self._lock:
            for _ in range(2):
                try:
                    return self._ask(question)
                except _TooMuch:
                    break
                except _Gone:
                    self._drop()
            self._drop()
        _LOG.warning("the process of a chat template was ended: it took too much time or memory")
        return {"refused": "the model's chat template refuses this conversation: it takes too much time or memory"}

    def _ask(self, question: Mapping[str, Any]) -> dict[str, str]:
        if self._child is None and not self._fault:
            self._open()
        if self._fault or self._child is None:
            return {"fault": self._fault}
        return self._child.ask(question)

    def _open(self) -> None:
        """A fault is remembered: the same source will not do better next time."""
        try:
            self._child = _Child()
        except OSError as error:
            raise Internal("no process can be started for the chat template") from error
        try:
            self._fault = self._child.ask(self._opening).get("fault", "")
        except _TooMuch:
            self._fault = "it takes too much time or memory"
        if self._fault:
            self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
