"""Models on a hub: downloaded where one answers, and one clear line where none does. The Hub's client reads its settings when it is
imported, so that each case runs in a process of its own.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.fakes.hub import COMMIT, hub
from tests.fakes.tiny_models import write_tiny_llama
from worker.sources.open import open_checkpoint

PROGRAM = """
import json, sys
from pathlib import Path
from worker.sources.errors import SourceError
from worker.sources.open import open_checkpoint
for name in sys.argv[2:]:
    try:
        source = open_checkpoint(name, cache=Path(sys.argv[1]))
        told = {"revision": source.checkpoint.revision, "digest": source.tokenizer.digest, "path": str(source.path)}
    except SourceError as error:
        told = {"error": error.message}
    print(json.dumps(told))
"""


def opened(home: Path, endpoint: str, *names: str, **environ: str) -> list[dict[str, str]]:
    """What `open_checkpoint` of each name gives or says."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environ}
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home / "cache"), *names],
        env={**os.environ, **proxies, "HF_HUB_OFFLINE": "0", **settings},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused_endpoint() -> str:
    """Where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_a_hub_that_refuses_the_connection_is_one_clear_line(tmp_path: Path) -> None:
    (told,) = opened(tmp_path, refused_endpoint(), "nobody/nothing")
    assert told["error"].startswith("nobody/nothing: no such directory here")
    assert "the Hub cannot be reached" in told["error"]
    assert "\n" not in told["error"]


def test_a_model_is_downloaded_once_opened_and_found_again_without_the_hub(tmp_path: Path) -> None:
    files = write_tiny_llama(tmp_path / "model")
    (files / "pytorch_model.bin").write_bytes(b"a pickle")
    with hub(files) as (endpoint, asked):
        (first,) = opened(tmp_path, endpoint, "someone/tiny")
        fetched = {Path(path).name for path in asked if "/resolve/" in path}
    expected = open_checkpoint(str(files), cache=tmp_path / "other")
    assert first["revision"] == expected.checkpoint.revision
    assert first["digest"] == expected.tokenizer.digest
    assert Path(first["path"]).name == COMMIT
    assert "model.safetensors" in fetched
    assert "pytorch_model.bin" not in fetched
    assert opened(tmp_path, refused_endpoint(), "someone/tiny") == [first]


def test_what_a_hub_refuses_is_said_by_name(tmp_path: Path) -> None:
    with hub(write_tiny_llama(tmp_path / "model")) as (endpoint, _):
        missing, gated, broken = opened(tmp_path, endpoint, "nobody/missing", "someone/gated", "someone/broken")
    assert "no such model on the Hugging Face Hub" in missing["error"]
    assert "HF_TOKEN" in gated["error"]
    assert "the Hub cannot be reached: " in broken["error"]
    assert "500" in broken["error"]
    assert all("\n" not in told["error"] for told in (missing, gated, broken))


def test_a_hub_that_never_answers_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (told,) = opened(tmp_path, endpoint, "nobody/nothing", HF_HUB_ETAG_TIMEOUT="1")
    assert "the Hub cannot be reached" in told["error"]
