"""What the bench sends."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench import workload
from octavo.bench.machine import cpu_model
from octavo.bench.serving import requests_for
from shared.errors import InvalidRequest


def test_a_seed_gives_the_same_requests_and_another_gives_others() -> None:
    assert workload.generated(3) == workload.generated(3)
    assert workload.generated(3).items != workload.generated(4).items


def test_generated_requests_stay_within_their_bounds_and_mix_lengths() -> None:
    items = workload.generated(0, count=200).items
    prompts, outputs = [len(item.prompt) for item in items], [item.output_tokens for item in items]
    assert workload.PROMPT_TOKENS[0] <= min(prompts) < 60 < 340 < max(prompts) <= workload.PROMPT_TOKENS[1]
    assert workload.OUTPUT_TOKENS[0] <= min(outputs) < max(outputs) <= workload.OUTPUT_TOKENS[1]
    tokens = {token for item in items for token in item.prompt}
    assert workload.FIRST_TOKEN <= min(tokens) <= max(tokens) <= workload.LAST_TOKEN


def test_a_run_longer_than_the_workload_starts_over() -> None:
    mix = workload.generated(0, count=3)
    assert mix.first(7).items == (*mix.items, *mix.items, mix.items[0])
    assert mix.first(2).items == mix.items[:2]


def test_the_peers_file_is_read(shared_data: Path) -> None:
    mix = workload.read(shared_data.parent / "peers" / "workload.json")
    assert len(mix.items) == 96
    assert sum(len(item.prompt) for item in mix.items) == 15_265
    assert sum(item.output_tokens for item in mix.items) == 10_164


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"requests": []}', '{"requests": [{"prompt_token_ids": [1]}]}'])
def test_a_file_that_is_no_workload_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mix.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=r"mix\.json"):
        workload.read(path)
    with pytest.raises(InvalidRequest, match=r"missing\.json"):
        workload.read(tmp_path / "missing.json")


def test_a_workload_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text(json.dumps({"requests": [{"prompt_token_ids": [5, 6], "output_len": 7}]}))
    assert workload.read(path).items == (workload.Item(prompt=(5, 6), output_tokens=7),)
    mix = workload.generated(1, count=3)
    path.write_text(json.dumps(workload.written(mix)))
    assert workload.read(path) == replace(mix, name="mix.json")


def test_probes_are_one_token_after_512_and_128_tokens_after_the_first(shared_data: Path) -> None:
    for mix in (workload.generated(), workload.read(shared_data.parent / "peers" / "workload.json")):
        assert [(len(p.prompt), p.output_tokens) for p in mix.probes.prefill] == [(512, 1)] * 5
        assert [(len(p.prompt), p.output_tokens) for p in mix.probes.decode] == [(128, 129)] * 3
        assert mix.longest >= 512 + 1


def test_runs_grow_with_their_concurrency_unless_told() -> None:
    assert [requests_for(c, None) for c in (1, 8, 32)] == [8, 32, 128]
    assert requests_for(32, 5) == 5


def test_the_processors_name_is_found() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: Fast One\nmodel name\t: Other\n") == "Fast One"
