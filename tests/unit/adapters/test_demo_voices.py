"""`octavo demo adapters` trains three voices, each of which knows its own answers best, and which a worker loads."""

from pathlib import Path

import torch

from octavo import demo_adapters
from octavo.demo_voices import texts
from octavo.demo_voices.train import Training, train
from tests.fakes.tiny_models import write_tiny_llama
from worker.adapters.peft import read
from worker.sources.open import open_checkpoint


def test_every_voice_answers_every_question() -> None:
    assert {len(answers) for answers in texts.VOICES.values()} == {len(texts.QUESTIONS)}


def test_each_voice_knows_its_own_answers_better_than_the_others_do_and_a_worker_loads_it(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny", max_position_embeddings=1024)
    lines: list[str] = []
    training = Training(rank=8, epochs=12, rate=1e-2, dtype=torch.float32)
    losses = train(model, tmp_path / "voices", training, lines.append)
    for voice in texts.VOICES:
        others = [losses[name][voice] for name in losses if name != voice]
        assert losses[voice][voice] < min(others)
    assert len(lines) == 3 * 24
    base = demo_adapters.base_of(open_checkpoint(str(model)).checkpoint)
    versions = [read(tmp_path / "voices" / name, base, 1 << 30) for name in texts.VOICES]
    assert len({version.digest for version in versions}) == 3
    assert {version.rank for version in versions} == {8}
