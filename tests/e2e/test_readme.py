"""The examples of README.md and docs/api.md, run as they stand, against the demo model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from octavo.client.sync import Client
from tests.conftest import ROOT
from tests.e2e.stack import RunningStack

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:50051"


def blocks(path: Path, language: str) -> list[str]:
    """The fenced code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def _at(stack: RunningStack, code: str) -> str:
    assert HTTP in code or GRPC in code, "the example names no address of `make serve`"
    return code.replace(HTTP, stack.http).replace(GRPC, stack.grpc)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_example_is_answered_with_sensible_english(demo_stack: RunningStack) -> None:
    [code] = [block for block in blocks(ROOT / "README.md", "sh") if block.startswith("curl")]
    answer = json.loads(_run("bash", "-c", _at(demo_stack, code)))
    assert answer["model"] == demo_stack.model
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_python_examples_print_an_answer(demo_stack: RunningStack) -> None:
    examples = [code for page in ("README.md", "docs/api.md") for code in blocks(ROOT / page, "python")]
    assert any("openai" in code for code in examples)
    assert any("from octavo" in code for code in examples)
    for code in examples:
        printed = _run(sys.executable, "-c", _at(demo_stack, code))
        assert len(re.findall(r"[a-z]{2,}", printed)) >= 3, printed


def test_the_documented_protoc_line_makes_stubs(tmp_path: Path) -> None:
    [line] = [block for block in blocks(ROOT / "docs" / "api.md", "sh") if "protoc" in block]
    assert line.strip() in (ROOT / "protos" / "inference.proto").read_text()
    command = line.replace("OUT", str(tmp_path)).replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["bash", "-c", command], cwd=ROOT, check=True, timeout=60)
    made = sorted(path.name for path in (tmp_path / "protos").iterdir())
    assert made == ["inference_pb2.py", "inference_pb2_grpc.py"]


@pytest.mark.parametrize("page", ["README.md", "docs/api.md", "docs/architecture.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:\s]+)[^):]*\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_commands_and_flags_that_the_readme_names_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(?:\.venv/bin/)?octavo ([a-z]+)[^`\n]*`", text))
    assert {"serve", "chat", "bench"} <= named
    for command in sorted(named):
        helped = _run(sys.executable, "-m", "octavo.cli.main", command, "--help")
        for flag in re.findall(rf"`octavo {command}[^`\n]*?(--[a-z-]+)", text):
            assert flag in helped, (command, flag)


def test_folders_that_the_documents_name_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text() + (ROOT / "README.md").read_text()
    named = set(re.findall(r"`((?:protos|shared|router|worker|kernels|octavo|tests|docs)/[\w/.]*)`", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_demo_answers_alike_over_both_apis(demo_stack: RunningStack) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    with openai.OpenAI(base_url=f"http://{demo_stack.http}/v1", api_key="unused", timeout=60) as http:
        over_http = http.chat.completions.create(
            model=demo_stack.model, messages=messages, temperature=0, max_tokens=24
        )  # type: ignore[call-overload]
    with Client(demo_stack.grpc, timeout=60) as client:
        over_grpc = client.chat(messages, temperature=0.0, max_tokens=24)
    assert over_http.choices[0].message.content == over_grpc.text
    assert "Paris" in over_grpc.text
