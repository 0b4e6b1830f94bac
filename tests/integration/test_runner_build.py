"""Building a runner: what is refused and how it is told, how KV memory is sized (case C49), and what a numerics id covers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from worker.execution.build import InsufficientMemory, ModelError, RunnerConfig, build
from worker.execution.memory import auto_budget, available_memory, check_fits, size_kv

CONFIG = RunnerConfig(
    dtype="float32",
    max_running=4,
    step_tokens=64,
    max_model_len=128,
    kv_bytes=4 << 20,
    threads=2,
    depth=0,
    backend="reference",
)
MIB = 1 << 20
BLOCK_BYTES = 3 * 2 * 2 * 16 * 16 * 4  # layers, K and V, heads, positions, head_dim, float32


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    return tiny_llama()[1]


def test_an_unknown_model_type_is_refused_with_what_is_served(checkpoint) -> None:
    with pytest.raises(ModelError, match=r"'mamba9' is not served; served: .*llama"):
        build(checkpoint.configured(model_type="mamba9"), CONFIG)


def test_a_missing_tensor_is_named_with_its_shape(checkpoint) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight.*\[172, 96\]"):
        build(checkpoint.without(name), CONFIG)


def test_a_mis_shaped_tensor_is_named_with_both_shapes(checkpoint) -> None:
    wrong = checkpoint.replacing("model.layers.2.self_attn.k_proj.weight", torch.zeros(32, 95))
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.k_proj.*\[32, 95\].*\[32, 96\]"):
        build(wrong, CONFIG)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "relu9"}, "relu9.*silu"),
        ({"hidden_size": "wide"}, "hidden_size.*wide"),
        ({"num_key_value_heads": 4}, "6.*4"),
        ({"rope_parameters": {"rope_type": "yarn9", "rope_theta": 1e4}}, "yarn9.*llama3"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_a_configuration_that_is_not_served_names_its_key(checkpoint, changes, named) -> None:
    with pytest.raises(ModelError, match=named):
        build(checkpoint.configured(**changes), CONFIG)


def test_rotary_settings_of_older_configurations_are_read(checkpoint) -> None:
    older = {key: value for key, value in checkpoint.config.items() if key != "rope_parameters"}
    scaling = {
        "type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    from worker.models.llama import spec

    new = spec({**older, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e4, **scaling}})
    assert spec({**older, "rope_theta": 5e4, "rope_scaling": scaling}).rotary == new.rotary
    assert spec(older).rotary[0].theta == 10000.0


def test_a_length_over_the_models_own_is_refused(checkpoint) -> None:
    with pytest.raises(ModelError, match=r"4096.*2048"):
        build(checkpoint, replace(CONFIG, max_model_len=4096))


def test_progress_counts_layers(checkpoint) -> None:
    seen: list[tuple[int, int]] = []
    build(checkpoint, CONFIG, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_given_bytes_become_blocks(checkpoint) -> None:
    runner = build(checkpoint, CONFIG)
    assert (runner.num_blocks, runner.kv_bytes) == (4 * MIB // BLOCK_BYTES, 4 * MIB // BLOCK_BYTES * BLOCK_BYTES)
    assert (runner.max_model_len, runner.vocab_size, runner.depth) == (128, 199, 0)


def test_too_little_memory_names_needed_available_and_what_fits(checkpoint) -> None:
    budget = 3 * BLOCK_BYTES + 100
    with pytest.raises(InsufficientMemory) as error:
        build(checkpoint, replace(CONFIG, max_model_len=2000, kv_bytes=budget))
    message = str(error.value)
    needed = 125 * BLOCK_BYTES / MIB
    assert f"2000 tokens needs {needed:.1f} MiB" in message
    assert f"available are {budget / MIB:.1f} MiB" in message
    assert "longest context that would fit is 48 tokens" in message


def test_an_automatic_length_is_what_fits_and_at_most_the_models(checkpoint) -> None:
    small = build(checkpoint, replace(CONFIG, max_model_len=0, kv_bytes=3 * BLOCK_BYTES))
    assert (small.max_model_len, small.num_blocks) == (48, 3)
    assert build(checkpoint, replace(CONFIG, max_model_len=0, kv_bytes=MIB)).max_model_len == MIB // BLOCK_BYTES * 16
    assert build(checkpoint, replace(CONFIG, max_model_len=0, kv_bytes=64 * MIB)).max_model_len == 2048


def test_not_even_one_block_is_an_error_with_an_automatic_length_too(checkpoint) -> None:
    needed = f"one sequence of 16 tokens needs {BLOCK_BYTES / MIB:.1f} MiB.*would fit is 0 tokens"
    with pytest.raises(InsufficientMemory, match=needed):
        build(checkpoint, replace(CONFIG, max_model_len=0, kv_bytes=10))


def test_automatic_memory_takes_no_more_blocks_than_the_slots_could_use_twice_over() -> None:
    given = {"block_bytes": 1000, "budget": 10**9, "wanted_len": 160, "model_len": 4096, "max_running": 8}
    assert size_kv(**given, capped=True).blocks == 160
    assert size_kv(**given, capped=False).blocks == 10**6


def test_more_kv_than_the_machine_has_is_refused_before_the_system_ends_the_process(checkpoint) -> None:
    with pytest.raises(InsufficientMemory, match=r"kv_memory is .* may have is"):
        build(checkpoint, replace(CONFIG, kv_bytes=1 << 60))


def test_more_slots_than_memory_holds_are_refused(checkpoint) -> None:
    with pytest.raises(InsufficientMemory, match=f"{10**9} choices of up to 128 tokens.*--max-running"):
        build(checkpoint, replace(CONFIG, max_running=10**9))


@pytest.mark.parametrize("limit", ["700000", "max"])
def test_what_all_of_the_machine_or_its_control_group_holds_bounds_the_kv(tmp_path, limit) -> None:
    files = {"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/memory.max": f"{limit}\n"}
    most = 9 * 1024 if limit == "max" else 700_000
    root = machine(tmp_path, 1, {**files, "proc/meminfo": f"MemTotal: {9 if limit == 'max' else 900_000} kB\n"})
    check_fits(most, root)
    with pytest.raises(InsufficientMemory, match="may have"):
        check_fits(most + 1, root)


def machine(root: Path, available_kib: int, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {available_kib} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_limits_the_machines_memory_counts(tmp_path) -> None:
    assert available_memory(machine(tmp_path, 1000, {})) == 1000 * 1024


def test_the_tightest_control_group_of_version_2_counts(tmp_path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/memory.current": "5\n",
        "sys/fs/cgroup/pod/memory.max": "900000\n",
        "sys/fs/cgroup/pod/memory.current": "500000\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 100000\n",
    }
    assert available_memory(machine(tmp_path, 10_000, files)) == 900_000 - 500_000 + 100_000


def test_control_groups_of_version_1_count(tmp_path) -> None:
    base = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu,memory:/box\n1:name=systemd:/\n",
        f"{base}/box/memory.limit_in_bytes": "700000\n",
        f"{base}/box/memory.usage_in_bytes": "200000\n",
        f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{base}/memory.usage_in_bytes": "1\n",
    }
    assert available_memory(machine(tmp_path, 10_000, files)) == 500_000
    assert auto_budget(1.0, tmp_path) == 250_000
    assert auto_budget(0.5, tmp_path) == 125_000


def test_numerics_ids_are_equal_for_equal_workers_and_differ_with_what_changes_bits(checkpoint) -> None:
    def id_of(config: RunnerConfig, revision: str = "memory") -> str:
        checkpoint.revision = revision
        return build(checkpoint, config).numerics_id

    base = id_of(CONFIG)
    assert id_of(replace(CONFIG, max_running=2, kv_bytes=2 * MIB, depth=1)) == base
    changed = {
        id_of(replace(CONFIG, dtype="bfloat16")),
        id_of(replace(CONFIG, deterministic=False)),
        id_of(replace(CONFIG, threads=1)),
        id_of(replace(CONFIG, backend="cpu")),
        id_of(CONFIG, "other"),
    }
    assert len(changed | {base}) == 6


def test_the_lower_half_imports_with_torch_and_numpy_alone() -> None:
    """No gRPC, gguf or telemetry comes in with the runner; transformers is not needed to run a Llama."""
    code = (
        "import sys, worker.execution.build;"
        "bad = {'grpc', 'gguf', 'prometheus_client', 'opentelemetry', 'google', 'triton', 'transformers', 'router'};"
        "print(sorted(bad & {name.split('.')[0] for name in sys.modules}))"
    )
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100, check=True
    )
    assert found.stdout.strip() == "[]"
