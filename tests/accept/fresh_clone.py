"""A fresh clone on this machine: `make serve` and nothing else, until a curl is answered."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.accept.run import ROOT

READY_SECONDS = 1800  # it downloads and installs everything
QUESTION = "What is the capital of France?"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _curl(port: int) -> str:
    """The answer's text; empty while there is none."""
    body = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    command = ["curl", "-sS", "-m", "60", f"http://127.0.0.1:{port}/v1/chat/completions"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return str(json.loads(done.stdout)["choices"][0]["message"]["content"])
    except (ValueError, KeyError):
        return ""


def _answer(process: "subprocess.Popen[bytes]", port: int) -> str:
    end = time.monotonic() + READY_SECONDS
    while not (text := _curl(port)) and process.poll() is None and time.monotonic() < end:
        time.sleep(1)
    return text


def show() -> Mapping[str, Any]:
    """Clones the commit that is checked out, serves it, asks it, and stops it."""
    began, port = time.monotonic(), _free_port()
    with TemporaryDirectory() as folder:
        clone = Path(folder) / "octavo"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
        process = subprocess.Popen(
            ["make", "serve", f"PORT={port}"], cwd=clone, env=environment, start_new_session=True
        )
        try:
            text = _answer(process, port)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(120)
    seconds = round(time.monotonic() - began, 1)
    return {"passed": "Paris" in text, "question": QUESTION, "answer": text, "seconds": seconds}
