"""Compiling the kernels, and what happens where that cannot be done."""

import logging
from pathlib import Path

import pytest

from kernels.backend import backend
from kernels.cpu import build, isa

AMX = "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512cd amx_tile amx_bf16 avx512_bf16 avx512_fp16"


def cpuinfo(tmp_path: Path, flags: str) -> Path:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    return file


@pytest.mark.skipif(isa.platform.machine() not in isa.X86, reason="levels are those of x86")
def test_levels_are_those_whose_instructions_are_all_there(tmp_path: Path) -> None:
    assert isa.levels(cpuinfo(tmp_path, AMX)) == ("amx", "avx512", "avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, AMX.replace("amx_bf16", ""))) == ("avx512", "avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, "avx2 fma f16c bmi2 avx512f")) == ("avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, "avx2")) == ("generic",)
    assert isa.levels(tmp_path / "none") == ("generic",)


def test_a_level_is_refused_where_the_machine_lacks_it(tmp_path: Path) -> None:
    assert isa.choose("auto", cpuinfo(tmp_path, "sse2")) == "generic"
    with pytest.raises(ValueError, match="'avx2' cannot be used here; there are: auto, generic"):
        isa.choose("avx2", cpuinfo(tmp_path, "sse2"))


def test_the_cache_serves_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build.library("generic", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.library("generic", tmp_path) == made


def test_without_a_compiler_the_reference_runs_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert backend("auto").name == "reference"
    assert [record.message for record in caplog.records if "no C++ compiler" in record.message]
    with pytest.raises(build.NoCompiler, match="no C\\+\\+ compiler"):
        backend("cpu")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho this compiler is broken >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(build.NoCompiler, match="this compiler is broken"):
        build.library("generic", tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(build.NoCompiler, match="OCTAVO_KERNEL_CACHE"):
        build.library("generic", tmp_path / "file")
