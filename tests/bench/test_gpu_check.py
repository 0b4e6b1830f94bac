"""The script for a GPU: parts run, go on where an earlier run ended, tell what does not hold, and need what a bare machine has."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shared.types import Sampling
from tests.bench.gpu.attention import fitting
from tests.bench.gpu.bed import Bed
from tests.bench.gpu.record import Record, facts, sources, table
from tests.bench.gpu.steady import Steady, waits_refused
from tests.conftest import ROOT
from worker.plan import Chunk, SampleRow, SlotStart, StepPlan

# Runs argv[1:] where what a bare GPU machine lacks cannot be found.
BARE = """
import importlib.abc, runpy, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LACKING = (
    "grpc", "grpc_health", "google", "gguf", "opentelemetry", "prometheus_client", "uvloop", "fastapi", "openai", "pytest", "router",
    "octavo", "protos",
)  # fmt: skip


def check(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        BARE % (LACKING,),
        "tests/bench/gpu_check.py",
        "--dry",
        "--out",
        str(out),
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


def test_on_a_bare_machine_parts_run_and_a_further_run_takes_up_the_rest(tmp_path: Path) -> None:
    first = check(tmp_path, "--parts", "prefill,rows,lora")
    assert first.returncode == 0, first.stdout + first.stderr
    held = json.loads((tmp_path / "gpu_check.json").read_text())
    assert list(held["parts"]) == ["prefill", "rows", "lora"]
    assert all(part["rows"] and part["error"] is None for part in held["parts"].values())
    assert set(held["rates"]) == {"copy", "product"}
    second = check(tmp_path, "--parts", "rows,end_to_end", "--limit", "100")
    assert second.returncode == 0, second.stdout + second.stderr
    told = json.loads((tmp_path / "gpu_check.json").read_text())
    assert told["parts"]["rows"] == held["parts"]["rows"], "what an earlier run ended is not run again"
    engines = told["parts"]["end_to_end"]["rows"]
    assert {(row["overlap"], row["graphs"]) for row in engines if row["engine"] == "octavo"} == {
        (True, True), (False, True), (True, False),
    }  # fmt: skip
    assert {row["engine"] for row in engines} == {"octavo", "cost of deterministic", "transformers generate"}
    assert "## end_to_end" in (tmp_path / "gpu_check.md").read_text()


def test_the_part_with_torch_compile_runs_on_a_bare_machine(tmp_path: Path) -> None:
    done = check(tmp_path, "--parts", "torch_compile")
    assert done.returncode == 0, done.stdout + done.stderr
    (part,) = json.loads((tmp_path / "gpu_check.json").read_text())["parts"].values()
    assert {(row["batch"], row["torch_compile"]) for row in part["rows"]} == {(1, True), (2, True)}


@pytest.mark.parametrize(
    ("environment", "out", "told"),
    [({"OCTAVO_GPU_TILES": "/dev/null"}, "out", "no regular file"), ({}, "file/below", "Not a directory")],
    ids=["tiles", "folder"],
)
def test_what_stops_all_parts_is_told_in_one_line_before_any_runs(tmp_path: Path, environment, out, told) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "tests/bench/gpu_check.py", "--dry", "--parts", "rows", "--out", str(tmp_path / out)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (1, 1, ""), done.stderr
    assert told in done.stderr


def record() -> Record:
    return Record(facts=facts(Bed.present(dry=True)))


def test_parts_that_failed_run_again_and_other_sources_start_anew(tmp_path: Path) -> None:
    held = record()
    held.parts = {
        "rows": {"seconds": 1.0, "rows": [{"kernel": "x", "equal": True}], "error": None},
        "lora": {"seconds": 1.0, "rows": [], "error": "Traceback"},
    }
    held.write(tmp_path)
    assert held.failed() == ["lora"]
    again = record()
    again.take_over(tmp_path / "gpu_check.json")
    assert list(again.parts) == ["rows"]
    other = record()
    other.facts["sources"] = "others"
    assert "another sources" in other.take_over(tmp_path / "gpu_check.json")
    assert not other.parts


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", "[" * 100_000, '{"facts": {}, "rates": {}}', '{"facts": 1, "rates": {}, "parts": {}}',
        '{"facts": {}, "rates": {}, "parts": {"rows": 7}}', '{"facts": {}, "rates": {}, "parts": {"rows": {"seconds": 1, "rows": [3]}}}',
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_a_damaged_record_is_told_and_all_parts_run_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu_check.json").write_text(text)
    anew = record()
    assert "all parts run again" in anew.take_over(tmp_path / "gpu_check.json")
    assert (anew.parts, anew.rates) == ({}, {})
    anew.write(tmp_path)
    assert "taken over" in record().take_over(tmp_path / "gpu_check.json")
    assert "all parts run again" in anew.take_over(tmp_path / "missing.json")


def test_a_record_is_replaced_whole_or_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a run is killed, or the disk is full, amid writing."""
    held = record()
    held.write(tmp_path)
    before = (tmp_path / "gpu_check.json").read_text()
    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(OSError, match="No space"):
        held.write(tmp_path)
    assert (tmp_path / "gpu_check.json").read_text() == before


def cut_short(path: Path, text: str, **_: str) -> None:
    path.write_bytes(text[: len(text) // 2].encode())
    raise OSError(errno.ENOSPC, "No space left on device")


def test_checks_that_do_not_hold_and_aims_that_are_missed_are_told(tmp_path: Path) -> None:
    held = record()
    rows = [{"kernel": "x", "equal": True, "off": 0.5}, {"kernel": "y", "equal": False, "off": None}]
    aims = [{"batch": 16, "of_copy": share, "aim": 0.8, "reached": share > 0.8} for share in (0.5, 0.9)]
    held.parts = {
        "kernels": {"seconds": 1.0, "rows": rows, "error": None},
        "decode": {"seconds": 2.0, "rows": aims, "error": None},
    }
    assert [row["kernel"] for row in held.wrong()] == ["y"]
    told = "\n".join(held.lines())
    assert "checks that do not hold: 1" in told
    assert "Aims: 1 of 2 reached" in told
    assert "MISSED (0.8): decode: batch 16, of_copy 0.5" in told
    assert list(table(rows)) == [
        "| kernel | equal | off |",
        "| --- | --- | --- |",
        "| x | yes | 0.5 |",
        "| y | no | - |",
    ]


def test_sources_have_another_digest_when_one_changes(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    digests = []
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "kernels" / "x.py").write_text(text)
        digests.append(sources(tmp_path))
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    ("asked", "free", "batch"), [(256, 1 << 40, 256), (256, 80 << 30, 512), (256, 20 << 30, 128), (16, 1, 1)]
)
def test_a_batch_is_cut_to_what_memory_holds(asked: int, free: int, batch: int) -> None:
    """Of 32k tokens at 4,096 bytes: 128 MiB a sequence, in four fifths of what is free."""
    assert fitting(asked, 4096 * 32768, free) == min(asked, batch)


class Modes:
    """A runner that notes torch's mode at each step, and fails at the number of a step."""

    depth, max_model_len, vocab_size, num_blocks = 1, 64, 67, 8

    def __init__(self, fails: int | None = None):
        self.seen: list[str | int] = []
        self._fails = fails

    def execute(self, _plan: StepPlan) -> None:
        self.seen.append(torch.cuda.get_sync_debug_mode())
        if len(self.seen) == self._fails:
            raise RuntimeError("called a synchronizing CUDA operation")


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> list[str | int]:
    """torch's mode without a GPU: the last one is in force."""
    modes: list[str | int] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    return modes


def decode(*, start: bool = False, length: int = 1) -> StepPlan:
    starts = (
        (SlotStart(slot=1, tokens=(1,), prompt_len=1, sampling=Sampling(temperature=0, max_tokens=1), choice_index=0),)
        if start
        else ()
    )
    return StepPlan(step=0, starts=starts, chunks=(Chunk(0, 4, length),), samples=(SampleRow(0, 0, 5),))


def test_waiting_is_refused_in_steady_decodes_alone(mode) -> None:
    runner = Modes()
    steady = Steady(runner, waits_refused)
    for plan in [decode(length=5), *[decode()] * 5, decode(start=True), *[decode()] * 4, decode(length=2)]:
        steady.execute(plan)
    assert runner.seen == [0, 0, 0, 0, "error", "error", 0, 0, 0, 0, "error", 0]
    assert steady.steps == 3
    assert mode[-1] == 0


def test_after_a_step_that_waited_torch_is_as_before(mode) -> None:
    steady = Steady(Modes(fails=4), waits_refused)
    for _ in range(3):
        steady.execute(decode())
    with pytest.raises(RuntimeError, match="synchronizing"):
        steady.execute(decode())
    assert mode == [0, "error", 0]
