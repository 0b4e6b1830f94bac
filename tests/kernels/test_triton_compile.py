"""The offline compile check: it reports what the compiler used, and fails on what must not be served. The whole table is tests/soak's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.gpu.arch import SHARED_LIMIT, table_of
from kernels.gpu.tiles import DEFAULT, Tile, Tiles, write
from tests.conftest import ROOT

pytest.importorskip("triton")


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tools.gpu_compile", "--quick", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)


def test_the_tightest_architectures_compile_what_decode_launches_in_one_process(tmp_path: Path) -> None:
    """Each for itself: code compiled for one is not taken for another."""
    archs = ("sm_89", "sm_90", "gfx942")
    done = check(*archs, "--match", "32/8 decode", "--json", tmp_path / "table.json")
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads((tmp_path / "table.json").read_text())
    assert [{row["kernel"] for row in table if row["arch"] == arch} for arch in archs] == [
        {"attention", "merge"}
    ] * len(archs)
    for row in table:
        assert row["registers"] > 0
        assert row["spilled"] == 0
        assert row["shared"] <= SHARED_LIMIT[row["arch"]]


@pytest.mark.parametrize(
    ("tile", "fault"),
    [
        (Tile(blocks={"BLOCK_M": 128, "BLOCK_N": 128}, warps=4, stages=3), "spills"),
        (Tile(blocks={"BLOCK_M": 16, "BLOCK_N": 128}, warps=4, stages=8), "shared memory over"),
    ],
)
def test_a_tile_that_spills_or_takes_too_much_shared_memory_fails_the_check(tile, fault, tmp_path: Path) -> None:
    planted = tmp_path / "tiles.json"
    write("sm_80", Tiles.read("sm_80").replaced("attention", "128", tile), planted)
    done = check("sm_80", "--match", "32/8 mixed", "--tiles", planted)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"** {fault}" in done.stdout
    assert "1 do not fit" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sm_91",), "no architecture 'sm_91'; there are: sm_80"),
        (("sm_90", "--tiles", "none.json"), "the table of tiles none.json cannot be read"),
        (("sm_90", "--match", "nosuch"), "no case's name has 'nosuch'"),
        (("sm_90", "--json", "none/table.json"), "there is no directory 'none'"),
    ],
)
def test_what_leaves_nothing_to_compile_is_told_and_is_no_kernel_that_does_not_fit(
    arguments: tuple[str, ...], said: str
) -> None:
    done = check(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr.splitlines()[-1]


def test_every_architecture_has_a_tile_for_every_kernel() -> None:
    kernels = {kernel for kernel, _, _ in Tiles.read("sm_90")}
    for arch in (*SHARED_LIMIT, "interpreter"):
        assert {kernel for kernel, size, _ in Tiles.read(arch) if size == "*" or kernel.startswith("lora")} == kernels


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    for arch in ("sm_90", "gfx942"):
        write(arch, Tiles.read(arch), tmp_path / "tiles.json")
        assert list(Tiles.read(arch, tmp_path / "tiles.json")) == list(Tiles.read(arch))
        assert Tiles.read(arch, tmp_path / "tiles.json").digest == Tiles.read(arch).digest
    assert json.loads(DEFAULT.read_text())["sm_90"] == json.loads((tmp_path / "tiles.json").read_text())["sm_90"]


@pytest.mark.parametrize(
    ("name", "table"),
    [("sm_86", "sm_89"), ("sm_87", "sm_80"), ("sm_100", "sm_90"), ("sm_120", "sm_89"), ("gfx90a", "gfx942")],
)
def test_a_gpu_that_has_no_table_takes_one_whose_limits_hold_on_it(name: str, table: str) -> None:
    assert table_of(name) == table
