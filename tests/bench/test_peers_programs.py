"""Other programs are bounded in time, leave nothing behind, and are read as they print."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.bench.peers import proc, programs
from octavo.bench.peers.processes import Ended, Program, ProgramFailed, run, serving
from octavo.bench.peers.programs import Load, Setting

OPENVINO = """startup 1.4s props {}
warmup 0.3s
ov probe: TTFT512 137.0 ms = 3737 prompt tok/s; decode bs1 57.5 tok/s
ov all96 run0: 552.0 out tok/s wall 18.41s tokens 10164 (expected 10164)
ov all96 run1: 639.0 out tok/s wall 15.90s tokens 10164 (expected 10164)
ov MEDIAN 595.5 out tok/s
ov conc=8 n=96: 270.1 out tok/s | TTFT p50/p99 51/210 ms | TPOT p50/p99 26.6/32.0 ms
"""
VLLM = """startup 74.0s (import 9.0s)
vllm offline lora=False probe: TTFT512 141.0 ms = 3631 prompt tok/s; decode bs1 32.7 tok/s
vllm offline lora=False all96 run0: 601.0 out tok/s wall 16.91s tokens 10164
vllm offline lora=False all96 run1: 610.0 out tok/s wall 16.66s tokens 10164
vllm offline lora=False all96 run2: 567.0 out tok/s wall 17.93s tokens 10164
"""
HF = {
    "probe": "startup 4.8s mode=probe\nhf probe torch.bfloat16: TTFT512 236.0 ms = 2169 prompt tok/s; decode bs1 17.8 tok/s\n",
    "single": "startup 4.6s mode=single\nhf single n=16: 19.1 out tok/s wall 88.8s -> scaled to 96: 532s\n",
}


def python(script: str, *arguments: str) -> Program:
    return Program(command=(sys.executable, "-c", script, *arguments))


def ended(output: str) -> Ended:
    return Ended(output=output, seconds=1.0, cpu_s=1.0, peak_rss=7 << 30)


def setting(tmp_path: Path, **changes: object) -> Setting:
    given = {"requests": 96, "repeats": 2, "loads": (Load(concurrency=8, requests=96),), **changes}
    return Setting(home=tmp_path, scripts=tmp_path, workload=tmp_path / "w.json", **given)  # type: ignore[arg-type]


def is_there(pid: int) -> bool:
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid: int) -> bool:
    limit = time.monotonic() + 10
    while is_there(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    return not is_there(pid)


def test_a_program_that_ends_well_gives_its_output_and_what_it_used() -> None:
    script = "import os; sum(range(3_000_000)); print(os.environ['WORD'])"
    done = run(Program(command=(sys.executable, "-c", script), env={"WORD": "hello"}), timeout=60)
    assert done.output == "hello\n"
    assert done.cpu_s > 0
    assert done.seconds > 0
    assert done.peak_rss > 1 << 20


def test_a_program_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(ProgramFailed, match=r"status 3: no such model"):
        run(python("import sys; sys.stderr.write('no such model'); sys.exit(3)"), timeout=60)
    with pytest.raises(ProgramFailed, match="nowhere"):
        run(Program(command=("/nowhere/at/all",)), timeout=60)


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "print('stuck', flush=True); time.sleep(600)"
    )
    with pytest.raises(ProgramFailed, match=r"not done after 3 s; it said last: stuck"):
        run(python(script), timeout=3)
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_a_bench_that_is_told_to_end_ends_what_it_started(tmp_path: Path) -> None:
    seen = tmp_path / "pid"
    sleeps = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    script = (
        "import sys; from octavo.bench.peers.processes import Program, run\n"
        f"run(Program(command=(sys.executable, '-c', {sleeps!r}, {str(seen)!r})), 60)"
    )
    bench = subprocess.Popen([sys.executable, "-c", script])
    limit = time.monotonic() + 30
    while not (seen.exists() and seen.read_text()) and time.monotonic() < limit:
        time.sleep(0.02)
    bench.terminate()
    assert bench.wait(timeout=40) == 128 + signal.SIGTERM
    assert gone(int(seen.read_text()))


def test_a_server_runs_for_as_long_as_the_block_lasts() -> None:
    script = "import time; print('ready', flush=True); time.sleep(600)"
    with serving(python(script), lambda running: "ready" in running.said(), timeout=60) as running:
        assert is_there(running.pid)
    assert gone(running.pid)


def test_a_server_that_ends_or_never_answers_is_told() -> None:
    with pytest.raises(ProgramFailed, match=r"status 1: .*port is taken"):
        with serving(python("raise SystemExit('port is taken')"), lambda _: False, timeout=60):
            pytest.fail("it is not ready")
    with pytest.raises(ProgramFailed, match="not ready after 1 s"):
        with serving(python("import time; time.sleep(600)"), lambda _: False, timeout=1):
            pytest.fail("it is not ready")


def test_cpu_time_and_memory_are_those_of_a_tree_of_processes(tmp_path: Path) -> None:
    for pid, parent, user, system, name in (
        (10, 1, 100, 50, "a (b) c"),
        (11, 10, 7, 3, "w"),
        (12, 11, 1, 1, "x"),
        (13, 1, 9, 9, "y"),
    ):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", parent, *[0] * 9, user, system, *[0] * 30]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        (tmp_path / str(pid) / "status").write_text(f"Name:\t{name}\nVmHWM:\t {pid} kB\n")
    assert proc.tree(10, tmp_path) == (10, 11, 12)
    assert proc.seconds((10, 11, 99), tmp_path) == pytest.approx(160 / os.sysconf("SC_CLK_TCK"))
    assert proc.peaks((10, 12, 99), tmp_path) == {10: 10 << 10, 12: 12 << 10}


def test_the_cpu_time_of_this_process_is_the_systems(tmp_path: Path) -> None:
    times = os.times()
    assert proc.seconds([os.getpid()]) == pytest.approx(times.user + times.system, abs=0.5)
    assert os.getpid() in proc.tree(os.getppid())


def test_openvinos_output_is_read(tmp_path: Path) -> None:
    said = programs.openvino(setting(tmp_path), lambda program: ended(OPENVINO))
    assert (said["output_throughput"], said["decode_tokens_per_s"], said["ttft_ms"]) == (595.5, 57.5, 137.0)
    assert (said["start_s"], said["peak_rss_bytes"]) == (1.4, 7 << 30)
    assert said["at"]["8"] == {
        "output_throughput": 270.1, "median_ttft_ms": 51, "p99_ttft_ms": 210, "median_tpot_ms": 26.6, "p99_tpot_ms": 32.0
    }  # fmt: skip


def test_vllms_output_is_read(tmp_path: Path) -> None:
    said = programs.vllm(setting(tmp_path), lambda program: ended(VLLM))
    assert (said["output_throughput"], said["decode_tokens_per_s"], said["start_s"]) == (601.0, 32.7, 74.0)


def test_transformers_output_is_read_from_its_two_programs(tmp_path: Path) -> None:
    said = programs.transformers(setting(tmp_path), lambda program: ended(HF[program.command[2]]))
    assert (said["output_throughput"], said["requests"], said["ttft_ms"]) == (19.1, 16, 236.0)


def test_output_without_figures_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="tells no run"):
        programs.vllm(setting(tmp_path), lambda program: ended("startup 74.0s\nKilled\n"))
    with pytest.raises(ProgramFailed, match="Killed"):
        programs.transformers(setting(tmp_path), lambda program: ended("Killed\n"))


def test_the_probe_is_read(tmp_path: Path) -> None:
    line = "[calib] GEMM2048 2105 (min 1980) GFLOP/s; 64x576x1536 866 (min 801) GFLOP/s; read 23.4 (min 22.0) GB/s\n"
    seen = programs.calibration(setting(tmp_path), lambda program: ended(line))
    assert seen == {"large_gflop_s": 2105.0, "rows64_gflop_s": 866.0, "read_gb_s": 23.4}


def test_peers_that_have_an_interpreter_are_found(tmp_path: Path) -> None:
    assert programs.installed(tmp_path) == ()
    (tmp_path / "ov" / "bin").mkdir(parents=True)
    (tmp_path / "ov" / "bin" / "python").symlink_to(sys.executable)
    assert programs.installed(tmp_path) == ("openvino",)
    assert programs.home({"PEERS_HOME": str(tmp_path)}) == tmp_path
    assert programs.scripts({"OCTAVO_SHARED": "/data"}) == Path("/data/peers")
