"""The worker's configuration holds only what can be run, and `auto` has one meaning."""

import math
from pathlib import Path

import pytest

from shared.config import load
from worker import auto
from worker.config import WorkerConfig
from worker.loading import set_threads


def test_the_defaults_listen_on_loopback_alone():
    got = WorkerConfig(model="m")
    assert (got.host, got.port, got.metrics_port) == ("127.0.0.1", 50061, None)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": ""}, "model"),
        ({"host": ""}, "host"),
        ({"port": -1}, "port"),
        ({"metrics_port": 1 << 16}, "metrics_port"),
        ({"port": 9_000, "metrics_port": 9_000}, "differ"),
        ({"kv_memory": 0}, "kv_memory"),
        ({"max_running": 0}, "max_running"),
        ({"max_running": 65, "step_tokens": 64}, "step_tokens"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"threads": -1}, "threads"),
        ({"target_itl_ms": 0.0}, "target_itl_ms"),
        ({"target_itl_ms": float("inf")}, "target_itl_ms"),
        ({"target_itl_ms": float("nan")}, "target_itl_ms"),
        ({"drain_seconds": -0.1}, "drain_seconds"),
    ],
)
def test_what_cannot_be_run_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        WorkerConfig(**{"model": "m", **fields})


@pytest.mark.parametrize(
    ("wanted", "stored", "dtype"),
    [
        ("auto", "bfloat16", "bfloat16"),
        ("auto", "torch.bfloat16", "bfloat16"),
        ("auto", "float16", "bfloat16"),
        ("auto", "float32", "float32"),
        ("auto", None, "float32"),
        ("float16", "float32", "float16"),
        ("float32", "bfloat16", "float32"),
    ],
)
def test_auto_dtype_is_the_models_own_but_for_float16(wanted, stored, dtype):
    assert auto.dtype(wanted, stored) == dtype


@pytest.mark.parametrize(
    ("wanted", "affinity", "quota", "threads"),
    [(0, 8, None, 8), (0, 8, 2.0, 2), (0, 8, 2.9, 2), (0, 8, 0.5, 1), (0, 2, 16.0, 2), (3, 8, 1.0, 3), (99, 8, 1.0, 8)],
)
def test_auto_threads_are_the_whole_cores_that_the_process_gets(wanted, affinity, quota, threads):
    assert auto.threads(wanted, affinity=affinity, quota=quota) == threads


SLICE = "0::/octavo.slice/worker.service\n"
V1 = "4:memory:/a\n3:cpu,cpuacct:/octavo/worker\n0::/a\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        ("0::/\n", {}, None),
        (None, {"cpu.max": "150000 100000\n"}, None),
        # a service's own quota, one of the slice that it is in, and the less of both
        (SLICE, {"octavo.slice/worker.service/cpu.max": "200000 100000\n"}, 2.0),
        (SLICE, {"octavo.slice/worker.service/cpu.max": "max 100000\n", "octavo.slice/cpu.max": "300000 100000\n"}, 3.0),
        (SLICE, {"octavo.slice/worker.service/cpu.max": "800000 100000\n", "octavo.slice/cpu.max": "50000 100000\n"}, 0.5),
        # a container that sees nothing but its own group
        (SLICE, {"cpu.max": "150000 100000\n"}, 1.5),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu/octavo/worker/cpu.cfs_quota_us": "50000\n", "cpu/octavo/worker/cpu.cfs_period_us": "100000\n"}, 0.5),
    ],
)  # fmt: skip
def test_the_quota_is_the_least_of_all_control_groups_that_the_process_is_in(groups, files, quota, tmp_path: Path):
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    affinity, got = auto.cores(tmp_path)
    assert got == quota
    assert affinity >= 1


@pytest.mark.parametrize(
    ("wanted", "model", "name"),
    [
        ("", "/models/smollm2", "smollm2"),
        ("", "models/x.gguf", "x"),
        ("", "org/name/", "name"),
        ("mine", "/models/x", "mine"),
    ],
)
def test_the_served_name_is_the_last_part_of_where_the_model_is(wanted, model, name):
    assert auto.served_name(wanted, model) == name


@pytest.mark.parametrize(("given", "seconds"), [("auto", None), ("off", math.inf), ("40", 0.04), ("0.5", 0.0005)])
def test_the_target_is_the_schedulers_own_unless_it_is_told_or_off(given, seconds):
    config = load(WorkerConfig, ["--model", "m", "--target-itl-ms", given], prog="p", env_prefix="P_", environ={})
    assert auto.target_itl(config.target_itl_ms) == seconds


@pytest.mark.parametrize("given", ["never", "-1", "", "fast"])
def test_a_target_that_is_none_ends_the_process(given, capsys):
    with pytest.raises(SystemExit):
        load(WorkerConfig, ["--model", "m", "--target-itl-ms", given], prog="p", env_prefix="P_", environ={})
    assert "target" in capsys.readouterr().err


def test_depth_is_0_unless_told():
    assert (auto.depth("auto"), auto.depth("0"), auto.depth("1")) == (0, 0, 1)


def test_no_more_threads_compute_than_there_are_cores_and_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setattr(auto, "cores", lambda: (4, None))
    assert set_threads(WorkerConfig(model="m", threads=100_000), {}) == 4
    assert "4 threads compute instead of 100000" in caplog.text


def test_openmp_is_told_the_threads_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setattr(auto, "cores", lambda: (4, None))
    environ: dict[str, str] = {}
    assert set_threads(WorkerConfig(model="m", threads=3), environ) == 3
    assert environ == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "PASSIVE"}
    environ = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE"}
    set_threads(WorkerConfig(model="m", threads=3), environ)
    assert environ == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE"}
