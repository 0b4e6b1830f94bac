"""torch.compile under the Triton backend: the same products and the same tokens as without, through the runner for devices, and a clear
refusal where it cannot be had. Kernels run in the interpreter; what torch compiles is compiled for the CPU.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kernels.backend import backend
from kernels.errors import NoBackend
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.kernels.test_triton_runner import CONFIG, MODEL, outputs
from tests.kernels.triton_cases import DTYPES, assert_close, drawn
from worker.config import WorkerConfig
from worker.execution.build import Device, build

from kernels.linear import compiled as module  # isort: skip
from kernels.linear.compiled import CannotCompile, Compiled  # isort: skip


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """What torch makes of the products it runs operator by operator: that is quick, and all else is as it is served."""
    return Compiled(torch.device("cpu"), "aot_eager")


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_mlps_equal_float64_for_one_few_and_many_rows(compiled: Compiled, dtype) -> None:
    up, down, bias = (drawn(*shape).to(dtype) for shape in ((96, 32), (32, 48), (96,)))
    with torch.inference_mode():
        for rows in (0, 1, 2, 5, 64, 65, 100):
            x = drawn(rows, 32, seed=rows).to(dtype)
            y = compiled.linear(x, compiled.fixed(up), compiled.fixed(bias))
            inner = compiled.mlp(x, (compiled.fixed(up), None), (compiled.fixed(down), None), "gelu_tanh")
            assert (y.shape, inner.shape, y.dtype, inner.dtype) == ((rows, 96), (rows, 32), dtype, dtype)
            if rows:
                gate, other = F.linear(x, up).double().chunk(2, dim=-1)
                want = (F.gelu(gate, approximate="tanh") * other) @ down.double().T
                assert_close(y, x.double() @ up.double().T + bias.double(), dtype)
                assert_close(inner, want, dtype, factor=4)


def test_each_weights_shape_compiles_for_one_row_few_and_many_and_never_again(compiled: Compiled) -> None:
    shapes = [(n, 24) for n in range(40, 61, 4)]
    with torch.inference_mode():
        for shape in shapes:
            for rows in (1, 3, 70):
                compiled.linear(drawn(rows, 24), compiled.fixed(drawn(*shape)), None)
        with torch.compiler.set_stance("fail_on_recompile"):
            for shape in shapes:
                for rows in (1, 2, 9, 63, 64, 65, 300):
                    x, weight = drawn(rows, 24), drawn(*shape, seed=5)
                    assert_close(compiled.linear(x, compiled.fixed(weight), None), F.linear(x, weight), torch.float32)


def test_a_runner_with_torch_compile_gives_the_tokens_of_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of it, code that is made for the CPU too."""
    asked: list[str] = []
    for name in ("linear", "mlp"):
        inner = getattr(Compiled, name)
        monkeypatch.setattr(Compiled, name, lambda *given, name=name, inner=inner: asked.append(name) or inner(*given))
    config = replace(CONFIG, deterministic=False)
    checkpoint = tiny_llama(**MODEL, num_key_value_heads=1, head_dim=16, vocab_size=67, attention_bias=True)[1]
    recordings = Recordings()
    device = Device(queue=LaggingQueue(), graphs=recordings)
    runner, plain = build(checkpoint, replace(config, torch_compile=True), device=device), build(checkpoint, config)
    asked.clear()
    want = outputs(plain)
    assert asked == []
    got = outputs(runner)
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want]
    assert asked == ["linear", "linear", "mlp"] * (len(asked) // 3)
    assert len(asked) >= 15, "prefill and four decodes"
    assert len(recordings.replayed) == 3
    assert runner.numerics_id != plain.numerics_id


REFUSED = {
    "deterministic": (
        {"backend": "triton", "deterministic": True},
        "torch.compile picks products by their rows",
    ),
    "reference": ({"backend": "reference"}, "torch.compile is for the backend triton, not for reference"),
    "cpu": ({"backend": "cpu"}, "torch.compile is for the backend triton, not for cpu"),
    "auto": ({"backend": "auto"}, "torch.compile is for the backend triton, not for auto"),
    "strange": ({"backend": "wurst", "torch_compile": False}, "no kernel backend 'wurst'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_cannot_be_had_the_runner_says_why(name: str) -> None:
    changes, said = REFUSED[name]
    config = replace(CONFIG, **{"torch_compile": True, "deterministic": False, **changes})
    with pytest.raises(NoBackend, match=said):
        build(tiny_llama(**MODEL, num_key_value_heads=1, head_dim=16, vocab_size=67)[1], config)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TRITON_INTERPRET", "0", "torch finds no GPU"),
        ("OCTAVO_GPU_TILES", "/nowhere.json", "the table of tiles /nowhere.json cannot be read"),
    ],
)
def test_kernels_that_cannot_be_had_are_told_as_what_was_asked_for(variable, value, said, monkeypatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(NoBackend, match=f"^{said}"):
        build(tiny_llama(**MODEL, num_key_value_heads=1, head_dim=16, vocab_size=67)[1], CONFIG)


@pytest.mark.parametrize("part", ["_linear", "_mlp"])
def test_a_compiler_that_fails_is_told_before_anything_is_served(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it fails for one of the two alone: for a product a CPU compiles nothing."""

    def broken(what: Callable[..., object], **_options: object) -> object:
        def run(*_: object) -> object:
            raise RuntimeError("\nno compiler here\nmore")

        return run if what.__name__ == part else what

    monkeypatch.setattr(module.torch, "compile", broken)
    with pytest.raises(CannotCompile, match=r"^torch.compile cannot be used: no compiler here$"):
        Compiled(torch.device("cpu"))
    with pytest.raises(CannotCompile):
        backend("triton", deterministic=False, torch_compile=True)


@pytest.mark.parametrize("part", ["_linear", "_mlp"])
def test_a_compiler_that_errs_is_not_used(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(what: Callable[..., torch.Tensor], **_options: object) -> Callable[..., torch.Tensor]:
        return lambda *args: what(*args) + (what.__name__ == part)

    monkeypatch.setattr(module.torch, "compile", wrong)
    with pytest.raises(CannotCompile, match="wrong products"):
        Compiled(torch.device("cpu"))


def test_the_worker_refuses_torch_compile_beside_deterministic() -> None:
    with pytest.raises(ValueError, match="torch_compile needs deterministic off"):
        WorkerConfig(model="m", torch_compile=True)
    assert WorkerConfig(model="m", torch_compile=True, deterministic=False).torch_compile
