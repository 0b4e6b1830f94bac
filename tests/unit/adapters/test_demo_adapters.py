"""`octavo demo adapters` writes what peft and a worker both load."""

from pathlib import Path

import pytest
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from octavo import demo_adapters
from octavo.cli.main import main
from shared.errors import InvalidRequest
from tests.fakes.tiny_models import write_tiny_llama
from worker.adapters.peft import read
from worker.sources.open import open_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_they_are_written_and_peft_and_the_worker_load_the_same_weights(model: Path, tmp_path: Path) -> None:
    assert (
        main(["demo", "adapters", str(tmp_path), "--model", str(model), "--count", "2", "--rank", "5", "--seed", "7"])
        == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter-001", "adapter-002"]
    base = demo_adapters.base_of(open_checkpoint(str(model)).checkpoint)
    first, second = (read(tmp_path / name, base, 1 << 30) for name in ("adapter-001", "adapter-002"))
    assert first.digest != second.digest
    assert first.rank == 5
    assert all(len(layer) == 7 for layer in first.weights.layers)
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path / "adapter-001")
    parameters = {name.replace(".default", ""): tensor for name, tensor in peft.named_parameters() if "lora_" in name}
    saved = load_file(tmp_path / "adapter-001" / demo_adapters.WEIGHTS)
    assert {name: tensor.tolist() for name, tensor in parameters.items()} == {n: t.tolist() for n, t in saved.items()}


def test_the_same_seed_gives_the_same_files(model: Path, tmp_path: Path) -> None:
    base = demo_adapters.base_of(open_checkpoint(str(model)).checkpoint)
    wanted = demo_adapters.Adapter(rank=3, seed=11, modules=("q_proj", "down_proj"))
    one, two = (demo_adapters.write(tmp_path / name, base, wanted) for name in "ab")
    assert (one / demo_adapters.WEIGHTS).read_bytes() == (two / demo_adapters.WEIGHTS).read_bytes()
    assert all(set(layer) == {"q", "down"} for layer in read(one, base, 1 << 30).weights.layers)


def test_modules_that_the_model_has_not_are_refused(model: Path, tmp_path: Path) -> None:
    base = demo_adapters.base_of(open_checkpoint(str(model)).checkpoint)
    with pytest.raises(InvalidRequest, match="none of c_attn"):
        demo_adapters.write(tmp_path / "a", base, demo_adapters.Adapter(rank=3, seed=1, modules=("c_attn",)))
