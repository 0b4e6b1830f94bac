"""Compiling the kernels, what the cache may hold, and what happens where that cannot be done."""

import logging
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kernels.backend
from kernels.backend import backend
from kernels.cpu import build, isa
from kernels.cpu.engine import Engine, Forbidden, arithmetic
from tests.conftest import ROOT
from worker.sources.cache import cache_directory

PLAIN = "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512cd"
AMX = f"{PLAIN} amx_tile amx_bf16 avx512_bf16 avx512_fp16"


def cpuinfo(tmp_path: Path, flags: str) -> Path:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    return file


@pytest.mark.skipif(isa.platform.machine() not in isa.X86, reason="levels are those of x86")
def test_levels_are_those_whose_instructions_are_all_there(tmp_path: Path) -> None:
    assert isa.levels(cpuinfo(tmp_path, AMX)) == ("amx", "avx512_bf16", "avx512", "avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, AMX.replace("amx_bf16", ""))) == ("avx512_bf16", "avx512", "avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, PLAIN)) == ("avx512", "avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, "avx2 fma f16c bmi2 avx512f")) == ("avx2", "generic")
    assert isa.levels(cpuinfo(tmp_path, "avx2")) == ("generic",)
    assert isa.levels(tmp_path / "none") == ("generic",)


def test_a_level_is_refused_where_the_machine_lacks_it(tmp_path: Path) -> None:
    assert isa.choose("auto", cpuinfo(tmp_path, "sse2")) == "generic"
    with pytest.raises(ValueError, match="'avx2' cannot be used here; there are: auto, generic"):
        isa.choose("avx2", cpuinfo(tmp_path, "sse2"))


def test_the_cache_serves_where_there_is_no_compiler(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.library("generic", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX")
    assert build.library("generic", tmp_path) == made
    assert libraries_made(compiler) == 1


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


def test_a_full_disk_is_no_fault_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho fatal error: closing 1.o: No space left on device >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(build.NoCompiler, match=r"OCTAVO_KERNEL_CACHE.*No space left") as error:
        build.library("generic", tmp_path / "cache")
    assert not isinstance(error.value, build.CompilerFailed)
    assert not list((tmp_path / "cache").glob("building-*"))


def test_a_user_without_a_home_is_told_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("OCTAVO_KERNEL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(build.NoCompiler, match=r"OCTAVO_KERNEL_CACHE.*home"):
        build.library("generic")
    with pytest.raises(OSError, match=r"OCTAVO_CACHE.*home"):
        cache_directory({})


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(build.NoCompiler, match="OCTAVO_KERNEL_CACHE"):
        build.library("generic", tmp_path / "file")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that only tells what it was asked for: the file that lists what it made, a line each. It sleeps where `slow` is in its folder."""
    made = tmp_path / "made"
    script = tmp_path / "compiler"
    script.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        [ -e {tmp_path}/slow ] && sleep 30
        while [ "$1" != -o ]; do shift; done
        echo "$2" | tee -a {made} > "$2"
        """)
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return made


def libraries_made(made: Path) -> int:
    return made.read_text().count("whole.so\n")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"x" + whole[1:],
        lambda whole: b"x" * 99,
    ],
    ids=["empty", "cut short", "changed", "not ours"],
)
def test_a_damaged_library_is_never_loaded_but_made_again(
    tmp_path: Path, compiler: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    target = build.library("generic", tmp_path / "cache")
    whole = target.read_bytes()
    assert build.library("generic", tmp_path / "cache") == target
    assert libraries_made(compiler) == 1
    target.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        build.library("generic", tmp_path / "cache")
    assert libraries_made(compiler) == 2
    assert caplog.text.count("is damaged") == 1
    caplog.clear()
    build.library("generic", tmp_path / "cache")
    assert (libraries_made(compiler), caplog.text) == (2, "")


def test_a_damaged_library_is_not_loaded_where_there_is_no_compiler(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.library("generic", tmp_path / "cache").write_bytes(b"")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "cache"))
    with pytest.raises(build.NoCompiler, match="no C\\+\\+ compiler"):
        build.library("generic", tmp_path / "cache")


def test_builds_at_once_make_one_library_and_leave_nothing_else(tmp_path: Path, compiler: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: build.library("generic", cache), range(4)))
    assert libraries_made(compiler) == 1
    assert {file for file in cache.iterdir() if file.name != ".lock"} == found


def test_a_build_that_was_killed_leaves_no_lock_and_what_it_wrote_is_removed(tmp_path: Path, compiler: Path) -> None:
    (tmp_path / "slow").touch()
    cache = tmp_path / "cache"
    program = f"import pathlib; from kernels.cpu.build import library; library('generic', pathlib.Path({str(cache)!r}))"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        while not list(cache.glob("building-*")):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert list(cache.glob("building-*"))
    (tmp_path / "slow").unlink()
    target = build.library("generic", cache)
    assert {file.name for file in cache.iterdir()} == {".lock", target.name}


def test_machines_of_two_architectures_may_share_a_cache(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = build.library("generic", tmp_path / "cache")
    monkeypatch.setattr(build.platform, "machine", lambda: "another")
    assert build.library("generic", tmp_path / "cache") != here


@pytest.mark.skipif(len(isa.levels()) < 2, reason="this machine has one level")
@pytest.mark.parametrize("error", [build.CompilerFailed, Forbidden])
def test_what_compiler_or_system_do_not_know_gives_way_to_the_next_level(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    best, second, *_ = isa.levels()

    def library(level: isa.Level) -> Path:
        if level == best:
            raise error("they are too new")
        return original(level)

    original = build.library
    monkeypatch.setattr(kernels.backend.build, "library", library)
    with caplog.at_level(logging.WARNING):
        assert backend("auto").numerics.startswith(f"{second}-")
    assert "they are too new" in caplog.text
    with pytest.raises(error):
        backend("cpu", isa=best)


@pytest.mark.parametrize("level", isa.levels())
def test_numerics_tell_how_the_processor_rounds_beside_the_library(level: isa.Level) -> None:
    path = build.library(level)
    engine = Engine(path, level, 1)
    rounding = engine.lib.octavo_rounding()
    assert (rounding != 0) == (level in isa.PAIRED)
    assert engine.build == arithmetic(path.read_bytes(), rounding)
    assert engine.build != arithmetic(path.read_bytes(), rounding ^ 1)
    assert backend("cpu", isa=level).numerics == f"{level}-{engine.build}"


def test_threads_that_the_system_does_not_give_are_told_of(tmp_path: Path) -> None:
    program = """
        import resource
        from kernels.cpu import build, isa
        from kernels.cpu.engine import Engine, UnusableLibrary
        path, level = build.library(isa.choose()), isa.choose()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
        try:
            Engine(path, level, 1000)
        except UnusableLibrary as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "no 1000 threads" in done.stdout) == (0, True), done.stderr
