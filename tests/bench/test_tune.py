"""Tuning of the GPU kernels' tiles, with a timer that is told what each tile takes: the fastest that gives the same is kept, and read back
by launches. The kernels run in Triton's interpreter.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kernels.errors import NotOffered
from kernels.gpu.arch import SHARED_LIMIT, NoGpu, present
from kernels.gpu.launch import Launcher
from kernels.gpu.tile_rules import BLOCKS, STAGES, WARPS, BadTiles, faults
from kernels.gpu.tiles import DEFAULT, VARIABLE, Tile, Tiles, begin, write
from octavo.bench.kernels.tune import judge, report
from octavo.bench.kernels.tune.judge import Run, Subject, agree
from octavo.bench.kernels.tune.report import Asked, line, subjects, tuned
from octavo.bench.kernels.tune.search import climb, neighbours
from octavo.bench.kernels.tune.sizes import Sizes
from octavo.cli.main import main
from tests.kernels import triton_by_value
from tests.kernels.conftest import unwritten_memory_shows

triton_by_value.install()
__all__ = ["unwritten_memory_shows"]  # for every test here too

TOY = Sizes(
    hidden=32, inner=48, heads=2, kv_heads=1, vocabulary=1100, few=2, many=3, most=66, prompt=8, batch=2, context=513, rank=4, slots=2,
    dims={"*": 16, "128": 128, "256": 256},
)  # fmt: skip
START = Tile(blocks={"BLOCK_M": 64, "BLOCK_N": 32}, warps=4, stages=3)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    copyfile(DEFAULT, tmp_path / "tiles.json")
    return tmp_path / "tiles.json"


def edited(table: Path, change: Callable[[dict[str, Any]], object], arch: str = "interpreter") -> Path:
    whole = json.loads(table.read_text())
    change(whole[arch])
    table.write_text(json.dumps(whole))
    return table


class Clock:
    """A timer that reads off the last launch what it is told that its constants take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Mapping[str, int]], float]):
        self._seconds, self._last = seconds, {}
        self.launches: list[Mapping[str, int]] = []
        inner = judge.Spills.__call__

        def start(spills, kernel, grid, args, options) -> None:
            self._last = options
            self.launches.append(options)
            inner(spills, kernel, grid, args, options)

        monkeypatch.setattr(judge.Spills, "__call__", start)

    def __call__(self, run: Run) -> float:
        run()
        return self._seconds(self._last)


def bowl(*best: tuple[str, int]) -> Callable[[Mapping[str, int]], float]:
    """Costs that fall, factor by factor, towards the best numbers."""
    return lambda options: 1.0 + sum(abs(options[name].bit_length() - value.bit_length()) for name, value in best)


@pytest.mark.parametrize("kernel", BLOCKS)
def test_neighbours_stay_inside_the_rules_and_lead_everywhere_that_is_free(kernel: str) -> None:
    table = json.loads(DEFAULT.read_text())["sm_90"]
    for size, tile in ((size, tile) for name, size, tile in Tiles.read("sm_90") if name == kernel):
        found = list(neighbours(kernel, tile))
        assert found
        assert tile not in found
        for other in found:
            row = {**other.blocks, "warps": other.warps, "stages": other.stages}
            assert not list(faults("sm_90", {**table, kernel: {**table[kernel], size: row}})), other
            mine = {**tile.blocks, "warps": tile.warps, "stages": tile.stages}
            assert sum(row[name] != mine[name] for name in row) == 1


def test_the_climb_ends_at_the_best_and_tries_nothing_twice() -> None:
    judged: list[Tile] = []

    def cost(tile: Tile) -> float:
        judged.append(tile)
        return (1.0 + abs(tile["BLOCK_M"] - 16) / 16 + abs(tile.warps - 8) + abs(tile.stages - 2)) / 9.0

    found = climb("attention", START, cost, tries=100)
    assert found.tile == Tile(blocks={"BLOCK_M": 16, "BLOCK_N": 32}, warps=8, stages=2)
    assert len(judged) == len(found.tried) - 1 == len({(t["BLOCK_M"], t["BLOCK_N"], t.warps, t.stages) for t in judged})


def test_the_climb_leaves_what_is_refused_or_hardly_faster_and_ends_after_so_many_tries() -> None:
    assert climb("attention", START, lambda _: 0.99, tries=100).tile == START
    refused = climb("attention", START, lambda _: None, tries=100)
    assert refused.tile == START
    assert len(refused.refused) == len(refused.tried) - 1 == len(list(neighbours("attention", START)))
    assert len(climb("attention", START, lambda _: 1.0, tries=3).tried) == 4


def test_a_faster_tile_is_kept_in_the_table_and_launches_read_it(table, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, bowl(("BLOCK", 1024), ("num_warps", 8)))
    before = json.loads(table.read_text())
    (row,) = tuned(present(), subjects(TOY, ["gated"]), table, clock, tries=30)
    assert row["before"] == {"BLOCK": 4096, "warps": 4, "stages": 1}
    assert row["after"] == {"BLOCK": 1024, "warps": 8, "stages": 1}
    assert row["speedup"] == 4.0
    assert set(row["us"]) == {"few", "many"}
    assert "'BLOCK': 1024" in line(row)
    after = json.loads(table.read_text())
    assert after["interpreter"].pop("gated") == {"*": row["after"]}
    assert before["interpreter"].pop("gated") != after["interpreter"]
    assert after == before, "no other entry has changed"
    monkeypatch.setenv(VARIABLE, str(table))
    assert Launcher.present().tile("gated") == Tile(blocks={"BLOCK": 1024}, warps=8, stages=1)
    monkeypatch.delenv(VARIABLE)
    assert Launcher.present().tile("gated")["BLOCK"] == 4096


def test_a_table_that_is_no_file_of_moderate_size_is_refused_unread(tmp_path: Path) -> None:
    """A pipe would be waited for without end, a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("w") as file:
        file.truncate(1 << 40)
    (tmp_path / "deep").write_text("[" * 100_000)
    for name in ("pipe", "large", "deep", "missing", "."):
        with pytest.raises(BadTiles, match="cannot be read"):
            Tiles.read("interpreter", tmp_path / name)
    with pytest.raises(BadTiles, match="no regular file"):
        Tiles.read("interpreter", Path("/dev/zero"))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_table_stays_whole_where_writing_ends_early(table: Path, error: BaseException, monkeypatch) -> None:
    """A full disk, or who tunes has had enough: also of a file that only begins."""
    before, fresh = table.read_text(), table.with_name("fresh.json")

    def full(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    for attempt in (lambda: write("sm_90", Tiles.read("sm_90"), table), lambda: begin(fresh)):
        with pytest.raises(BadTiles if isinstance(error, OSError) else KeyboardInterrupt):
            attempt()
    assert table.read_text() == before
    assert [path.name for path in table.parent.iterdir()] == [table.name]


def test_a_link_to_a_table_stays_one(table: Path) -> None:
    link = table.with_name("link.json")
    link.symlink_to(table)
    tile = Tile(blocks={"BLOCK": 1024}, warps=8, stages=1)
    write("interpreter", Tiles.read("interpreter").replaced("gated", "*", tile), link)
    assert link.is_symlink()
    assert Tiles.read("interpreter", table).find("gated") == tile


class Looked(Tiles):
    """Tiles that note which entries were taken."""

    def __init__(self, tiles: Tiles):
        super().__init__({**tiles._entries})
        self.seen: set[tuple[str, str]] = set()

    def find(self, kernel: str, size: int | None = None) -> Tile:
        self.seen.add((kernel, str(size) if str(size) in self._entries[kernel] else "*"))
        return super().find(kernel, size)


def test_every_entry_of_the_table_is_judged_by_what_launches_with_it() -> None:
    every = subjects(TOY)
    for arch in SHARED_LIMIT:
        assert {(kernel, size) for kernel, size, _ in Tiles.read(arch)} <= {(one.kernel, one.size) for one in every}
    for one in every:
        held = Tiles.read("interpreter")
        own = held.find(one.kernel, int(one.size) if one.size.isdecimal() else None)
        looked = Looked(held.replaced(one.kernel, one.size, own))
        got = one.make(Launcher(present(), looked, exact=not one.fused))()
        assert (one.kernel, one.size) in looked.seen, one.name
        assert not got.isnan().any(), one.name


@pytest.mark.parametrize(
    ("kernel", "block", "to"),
    [("attention.decode", "BLOCK_N", 32), ("lora.shrink", "SPLIT_K", 4), ("gated", "BLOCK", 64)],
)
def test_another_tile_of_a_kernel_gives_the_same_and_reaches_its_launch(kernel, block, to, table, monkeypatch) -> None:
    clock = Clock(monkeypatch, lambda _: 1.0)
    every = [one for one in subjects(TOY, [kernel]) if (one.kernel, one.size) == (kernel, "*")]
    held = judge.Judge(present(), Tiles.read("interpreter", table), every, clock)
    own = Tiles.read("interpreter", table).find(kernel)
    clock.launches.clear()
    assert held.cost(replace(own, blocks={**own.blocks, block: to})) == 1.0
    assert held.why == {}
    assert to in {launch.get(block) for launch in clock.launches}


def subject(give: Callable[[Launcher], torch.Tensor], *, exact: bool = False) -> Subject:
    return Subject(kernel="gated", size="*", name="one", make=lambda launch: lambda: give(launch), exact=exact)


def of_block(launch: Launcher) -> torch.Tensor:
    return torch.full((3,), float(launch.tile("gated")["BLOCK"]))


def raising(launch: Launcher) -> torch.Tensor:
    from triton.runtime.errors import OutOfResources

    if launch.tile("gated")["BLOCK"] != 4096:
        raise OutOfResources(2, 1, "shared memory")
    return torch.ones(3)


class Spilling:
    """A kernel whose compiled code tells of spills."""

    arg_names = ("BLOCK",)

    def __getitem__(self, _grid: object) -> Callable[..., object]:
        return lambda **options: type("Made", (), {"n_spills": 0 if options["BLOCK"] == 4096 else 4})


def spilling(launch: Launcher) -> torch.Tensor:
    launch.run(Spilling(), (1,), tile=launch.tile("gated"))
    return torch.ones(3)


@pytest.mark.parametrize(
    ("give", "why"), [(of_block, "gives something else"), (raising, "OutOfResources"), (spilling, "spills")]
)
def test_a_tile_that_is_wrong_or_does_not_fit_or_spills_never_wins(give, why: str, table: Path) -> None:
    """However fast it is."""
    held = judge.Judge(present(), Tiles.read("interpreter", table), [subject(give)], lambda run: float(run().numel()))
    assert held.cost(Tile(blocks={"BLOCK": 4096}, warps=8, stages=1)) == 1.0
    assert held.cost(Tile(blocks={"BLOCK": 1024}, warps=4, stages=1)) is None
    assert held.why == {why: 1}


def test_a_tile_that_was_fast_by_chance_is_not_kept(table: Path) -> None:
    """It is timed again, in turns with the table's own."""
    times = iter([1.0, *[0.5] + [1.0] * 1000])
    lucky = subject(lambda _: torch.ones(3))
    (row,) = tuned(present(), [lucky], table, lambda _: next(times), tries=30)
    assert row["tried"] > 1
    assert row["before"] == row["after"]
    assert table.read_text() == DEFAULT.read_text()


def test_results_agree_up_to_the_order_of_sums() -> None:
    want = torch.tensor([100.0, 1.0, -torch.inf])
    assert agree(want + torch.tensor([1.0, 0.5, 0.0]), want, exact=False)
    assert not agree(want + torch.tensor([3.0, 0.0, 0.0]), want, exact=False)
    assert not agree(want + torch.tensor([1.0, 0.0, 0.0]), want, exact=True)
    assert not agree(torch.tensor([100.0, torch.nan, -torch.inf]), want, exact=False)
    assert not agree(torch.tensor([3, 4]), torch.tensor([3, 5]), exact=False)
    assert not agree(torch.zeros(3), torch.ones(3), exact=False)


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no kernel": (lambda t: t.pop("embed"), 'no tile "\\*" for embed'),
    "no size": (lambda t: t["gated"].pop("*"), 'no tile "\\*" for gated'),
    "no job": (lambda t: t["lora.expand"].pop("64"), 'no tile "64" for lora.expand'),
    "strange kernel": (lambda t: t.update({"wurst": {}}), "wurst"),
    "strange block": (lambda t: t["gated"]["*"].update({"BLOK": 3}), "a tile has BLOCK, warps, stages"),
    "no warps": (lambda t: t["attention"]["128"].pop("warps"), "attention, 128: a tile has"),
    "no power of two": (lambda t: t["attention"]["*"].update({"BLOCK_N": 48}), "BLOCK_N is a power of two, not 48"),
    "too small": (lambda t: t["attention"]["*"].update({"BLOCK_M": 8}), "BLOCK_M is from 16 to 128, not 8"),
    "text": (lambda t: t["sample"]["*"].update({"UNROLL": "8"}), "UNROLL is from 1 to 32, not '8'"),
    "truth": (lambda t: t["sample"]["*"].update({"UNROLL": True}), "UNROLL is from 1 to 32, not True"),
    "too many stages": (lambda t: t["greedy"]["*"].update({"stages": 9}), "stages is from 1 to 8"),
    "a job of another size": (lambda t: t["lora.shrink"]["*"].update({"BLOCK_M": 32}), "tokens of a job"),
    "steps that differ": (lambda t: t["matmul.few"]["*"].update({"BLOCK_K": 32}), "BLOCK_K of matmul.few and matmul.many"),
    "a size that is none": (lambda t: t["attention"].update({"big": t["attention"]["*"]}), "a size is a number"),
    "a list": (lambda t: t.update({"gated": []}), "for gated"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_with_what_is_wrong(name: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, said = BAD[name]
    monkeypatch.setenv(VARIABLE, str(edited(table, change)))
    with pytest.raises(BadTiles, match=said) as raised:
        Launcher.present()
    assert str(table) in str(raised.value)
    assert Tiles.read("sm_80", table), "what is wrong for one architecture is no other's concern"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ("[]", "no object"), ("{}", "no tiles for interpreter; it has those for nothing"), (None, "cannot be read"),
     ('{"interpreter": 3}', "no object of kernels")],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "tiles.json").write_text(text)
    with pytest.raises(BadTiles, match=said):
        Tiles.of(present(), tmp_path / "tiles.json")


def test_the_table_in_the_repository_keeps_all_rules() -> None:
    for arch in (*SHARED_LIMIT, "interpreter"):
        assert {kernel for kernel, _, _ in Tiles.read(arch)} == set(BLOCKS)
    assert (WARPS, STAGES) == ((1, 32), (1, 8))


def test_a_gpu_that_was_tuned_itself_has_its_own_tiles_and_others_the_tables(table: Path) -> None:
    h100 = replace(present(), name="sm_100", table="sm_90")
    assert Tiles.of(h100, table).digest == Tiles.read("sm_90", table).digest
    tile = Tile(blocks={"BLOCK": 512}, warps=2, stages=1)
    report.write("sm_100", Tiles.of(h100, table).replaced("gated", "*", tile), table)
    assert Tiles.of(h100, table).find("gated") == tile
    assert Tiles.read("sm_90", table).find("gated") != tile


@pytest.mark.parametrize("interpret", ["1", "0"])
def test_without_a_gpu_nothing_is_tuned_and_one_line_says_why(interpret, table, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    before = table.read_text()
    assert main(["bench", "kernels", "--tune", "--tiles", str(table)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("octavo: tiles are tuned on a GPU")
    assert ("TRITON_INTERPRET is set" if interpret == "1" else "torch finds none") in told
    assert told.count("\n") == 1
    assert table.read_text() == before
    with pytest.raises(NoGpu):
        report.tune(Asked(), print)


@pytest.mark.parametrize("options", [["--kernels", "attention"], ["--tiles", "tiles.json"]], ids=" ".join)
def test_what_tuning_alone_heeds_is_refused_without_it(options, capsys) -> None:
    assert main(["bench", "kernels", *options]) == 1
    assert "needs --tune" in capsys.readouterr().err


def test_a_kernel_that_has_no_tiles_is_named() -> None:
    with pytest.raises(NotOffered, match="named like wurst; there are: attention"):
        subjects(TOY, ["wurst"])
    assert {one.kernel for one in subjects(TOY, ["lora", "embed"])} == {"lora.shrink", "lora.expand", "embed"}
