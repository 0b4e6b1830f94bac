"""A worker with real kernels, adapters that peft made, over real streams: the judge's tokens, whatever else comes and goes."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.e2e.judge import adapters as judge
from tests.fakes.adapter_client import AdapterClient, adapter_client
from tests.fakes.engine import QUICK, token_request
from tests.fakes.scripted_worker import until
from tests.fakes.tiny_models import write_tiny_llama
from worker.assemble import assemble
from worker.config import WorkerConfig
from worker.loading import load
from worker.metrics import WorkerMetrics
from worker.servicer import server as worker_server
from worker.servicer.hub import Hub
from worker.servicer.servicer import WorkerServicer

TOKENS = 16
KINDS = (0, 1, 4, 7)  # of the judge's: attention, everything, rsLoRA, the head


@dataclass(frozen=True, kw_only=True)
class Models:
    """A tiny model and adapters of it, by name, each with what transformers makes of it."""

    base: Path
    adapters: dict[str, Path]
    merged: dict[str, PreTrainedModel]

    @torch.inference_mode()
    def agrees(self, name: str, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """At every position the token is the judge's first choice, given what stands before."""
        given = torch.tensor([[*prompt, *tokens]])
        judged = self.merged[name](input_ids=given).logits[0, len(prompt) - 1 : -1]
        assert list(tokens) == judged.argmax(-1).tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("adapters")
    base = write_tiny_llama(folder / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    kinds, adapters, merged = judge.kinds(), {}, {"": model}
    for number in KINDS:
        name = f"team/k{number}"
        adapters[name] = judge.save_random(model, kinds[number], folder / "of" / name, seed=number, strength=0.7)
        merged[name] = judge.merged(model, adapters[name])
    return Models(base=base, adapters=adapters, merged=merged)


@asynccontextmanager
async def running(
    models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **changes: Any
) -> AsyncIterator[tuple[AdapterClient, Hub]]:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    fields: dict[str, Any] = {
        "model": str(models.base),
        "dtype": "float32",
        "kv_memory": 16 << 20,
        "max_model_len": 128,
        "max_running": 16,
        "step_tokens": 256,
        "step_sweep": "never",
        "threads": 2,
        "max_adapters": 2,
    }
    parts = load(WorkerConfig(**(fields | changes)))
    servicer = WorkerServicer()
    server = await worker_server.start(servicer, "127.0.0.1", 0)
    metrics = WorkerMetrics.make(CollectorRegistry(), servicer.serving)
    servicer.loaded = assemble(parts, metrics=metrics, drain_seconds=10, check=True, settings=QUICK)
    hub = servicer.loaded.hub
    assert hub.adapters is not None
    await hub.adapters.looked()
    try:
        async with adapter_client(server.address) as client:
            yield client, hub
    finally:
        await server.stop(None)
        assert await hub.aclose()
        parts.close()


@pytest.mark.parametrize("depth", ["0", "1"])
async def test_adapters_of_the_directory_and_the_base_in_one_batch_give_the_judges_tokens(
    models, monkeypatch, tmp_path, depth
):
    async with running(models, monkeypatch, tmp_path, depth=depth, adapter_dir=str(models.base.parent / "of")) as (
        worker,
        _,
    ):
        prompt = token_request(1, 1, length=40, first=3).prompt_tokens
        names = ["", *models.adapters] * 3
        answers = await asyncio.gather(*(worker.tokens(prompt_tokens=prompt, adapter_name=name) for name in names))
        for name, tokens in zip(names, answers, strict=True):
            models.agrees(name, prompt, tokens)
        assert len(set(map(tuple, answers))) == len(models.adapters) + 1


async def test_a_replacement_is_used_from_the_next_request_on_and_the_running_one_ends_on_the_old(
    models, monkeypatch, tmp_path
):
    async with running(models, monkeypatch, tmp_path) as (worker, _):
        first, second = list(models.adapters)[:2]
        prompt = token_request(1, 1, length=40, first=3).prompt_tokens
        await worker.load("a", models.adapters[first])
        long = asyncio.create_task(worker.tokens(prompt_tokens=prompt, adapter_name="a", max_tokens=80))
        await until(lambda: worker.router.tokens(1), "its first token")
        await worker.load("a", models.adapters[second], replace=True)
        models.agrees(second, prompt, await worker.tokens(prompt_tokens=prompt, adapter_name="a"))
        models.agrees(first, prompt, await long)


@pytest.mark.parametrize("depth", ["0", "1"])
async def test_loads_replacements_and_unloads_alter_no_token_of_16_streams_and_leave_nothing(
    models, monkeypatch, tmp_path, depth
):
    async with running(models, monkeypatch, tmp_path, depth=depth, max_adapters=3) as (worker, hub):
        await worker.load("mine", next(iter(models.adapters.values())))
        quiet = await worker.quiet([(name, first) for name in ("", "mine") for first in range(3)], length=30)
        sources, stop = list(models.adapters.values()), asyncio.Event()

        async def churn(seed: int) -> list[str]:
            draw = random.Random(seed)
            return [await worker.operate(draw, sources) for _ in range(10)]

        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(worker.stream(quiet, number, stop, length=30)) for number in range(16)]
            done = await asyncio.gather(*map(churn, range(3)))
            stop.set()
        assert sum(each.count("load") + each.count("replace") for each in done) >= 10
        assert all(task.result() for task in streams)
        assert hub.adapters is not None
        catalog = hub.adapters.library.catalog
        for name in list(catalog.entries):
            await worker.unload(name)
        await until(lambda: not catalog.used and not hub.adapters._ready, "everything to be freed")
        stats = hub.engine.stats
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.total_blocks)
