"""Adapters through the whole stack, as OpenAI's and vLLM's clients ask for them: two workers, a directory of adapters, a router."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo.client.adapters import AdapterClient
from octavo.client.sync import Client
from shared.errors import Internal, Unavailable
from tests.e2e.conftest import SMALL
from tests.e2e.judge import adapters as judge
from tests.e2e.stack import RunningStack, until

TOKENS = 12
PROMPT = list(range(3, 43))
LIVE = ("--max-adapters", "2", "--dtype", "float32")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A stack, its adapter directory, sources beside that, and each source's tokens as transformers and peft make them."""

    stack: RunningStack
    http: httpx.Client
    folder: Path
    sources: dict[str, Path]
    judged: dict[str, list[int]]

    def asked(self, model: str) -> httpx.Response:
        body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        return self.http.post("/v1/completions", json={**body, "return_token_ids": True})

    def tokens(self, model: str) -> list[int]:
        """Over gRPC."""
        with Client(self.stack.grpc, timeout=60) as client:
            done = client.complete(
                PROMPT, model=model, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, return_tokens=True
            )
            return list(done.choices[0].tokens)

    def post(self, what: str, **body: object) -> httpx.Response:
        return self.http.post(f"/v1/{what}_lora_adapter", json=body)

    def names(self) -> dict[str, str]:
        return {card["id"]: card.get("parent", "") for card in self.http.get("/v1/models").json()["data"]}


@torch.inference_mode()
def _judged(model: torch.nn.Module) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(TOKENS):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    at = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    kinds = judge.kinds()
    sources = {
        name: judge.save_random(model, kinds[number], at / "sources" / name, seed=number, strength=0.7)
        for name, number in (("one", 0), ("two", 1), ("three", 4))
    }
    judged = {name: _judged(judge.merged(model, path)) for name, path in sources.items()} | {"": _judged(model)}
    folder = at / "served"
    for name in ("one", "two"):
        shutil.copytree(sources[name], folder / name)
    stack = RunningStack(
        tiny_model,
        workers=2,
        arguments=("--port", "0", "--adapter-dir", str(folder)),
        worker_arguments=(*SMALL, *LIVE),
    )
    with httpx.Client(base_url=f"http://{stack.http}", timeout=60) as http:
        yield Served(stack=stack, http=http, folder=folder, sources=sources, judged=judged)
    assert stack.stop() == 0, stack.said()


def test_adapters_of_the_directory_are_listed_and_answer_as_the_judge(served: Served) -> None:
    base = served.stack.model
    assert served.names() == {base: "", "one": base, "two": base}
    assert len(set(map(tuple, served.judged.values()))) == 4
    for model, judged in ((base, ""), ("one", "one"), ("two", "two"), (f"{base}:one", "one")):
        answer = served.asked(model)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        assert served.tokens(model) == served.judged[judged]


def test_loaded_replaced_and_unloaded_by_name_at_every_worker(served: Served) -> None:
    loaded = served.post("load", lora_name="mine", lora_path=str(served.sources["one"]))
    assert loaded.status_code == 200, loaded.text
    assert [served.tokens("mine") for _ in range(4)] == [served.judged["one"]] * 4
    again = served.post("load", lora_name="mine", lora_path=str(served.sources["three"]))
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_exists")
    replaced = served.post("load", lora_name="mine", lora_path=str(served.sources["three"]), load_inplace=True)
    assert replaced.status_code == 200, replaced.text
    assert [served.tokens("mine") for _ in range(4)] == [served.judged["three"]] * 4
    assert served.post("unload", lora_name="mine").status_code == 200
    gone, unknown = served.asked("mine"), served.asked("none")
    assert (gone.status_code, unknown.status_code) == (404, 404)
    assert gone.text.replace("mine", "none") == unknown.text
    assert served.post("unload", lora_name="mine").status_code == 404
    assert "mine" not in served.names()


def test_what_cannot_be_served_is_refused_with_its_reason_and_changes_nothing(served: Served, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(served.sources["one"], tmp_path / "broken"))
    (broken / "adapter_model.safetensors").write_bytes(b"\x08")
    before = served.names()
    for path, status in ((str(broken), 400), (str(tmp_path / "nothing"), 404), ("../../etc", 400)):
        refused = served.post("load", lora_name="bad", lora_path=path)
        assert refused.status_code == status, refused.text
        assert refused.json()["error"]["message"]
    assert served.names() == before
    assert served.tokens("one") == served.judged["one"]


def test_workers_that_begin_again_are_told_what_was_loaded_and_nobody_gets_the_bases_tokens(served: Served) -> None:
    with AdapterClient(served.stack.grpc) as operator:
        operator.load("late", str(served.sources["three"]), pin=True)
        for pid in served.stack.worker_pids:
            os.kill(pid, signal.SIGKILL)

        def whole() -> bool:
            """Whether both workers have it again. Whatever is asked meanwhile is answered as it should be, or not at all."""
            with suppress(Unavailable, Internal):  # Internal: both workers were lost under it
                assert served.tokens("late") == served.judged["three"]
            (late,) = [adapter for adapter in operator.list() if adapter.name == "late"]
            return [at.level in ("host", "device") and at.pinned for at in late.workers] == [True, True]

        until(whole, "both workers", 60)
        assert [served.tokens("late") for _ in range(4)] == [served.judged["three"]] * 4
        operator.unload("late")
        assert served.asked("late").status_code == 404


def test_an_adapter_whose_files_change_is_another_from_then_on(served: Served) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(served.sources["three"] / name, served.folder / "two" / name)
    until(lambda: served.tokens("two") == served.judged["three"], "the new version")
    assert [served.tokens("two") for _ in range(4)] == [served.judged["three"]] * 4
