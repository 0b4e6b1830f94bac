"""A trained model of 260K parameters tells the story that its maker published."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.e2e.judge.runs import Session, make_runner
from tests.fakes.llama2c import convert
from worker.sources.open import Source, open_checkpoint

BOS = 1


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "models" / "stories260K"


@pytest.fixture(scope="module")
def source(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Source:
    made = tmp_path_factory.mktemp("stories260K")
    directory = convert(folder / "stories260K.bin", folder / "tok512.model", made / "model")
    return open_checkpoint(str(directory), cache=made / "cache")


def _published_story(folder: Path) -> str:
    """What follows the first command that runs the model."""
    text = (folder / "stories260K.md").read_text()
    after = text.split("$ ./run stories260K/stories260K.bin -z stories260K/tok512.bin -t 0.0\n", 1)[1]
    return after.split("\n```", 1)[0]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step_tokens", [1, 2048])
def test_the_story_is_the_published_one(source: Source, folder: Path, depth: int, step_tokens: int) -> None:
    runner = make_runner(source.checkpoint, depth=depth)
    outcome = Session(runner, step_tokens=step_tokens, max_running=1).run([[BOS]], 256)[0]
    tokenizer = Tokenizer.from_str(source.tokenizer.files["tokenizer.json"].decode())
    assert tokenizer.decode(list(outcome.tokens)).strip() == _published_story(folder)


def test_a_prompt_of_the_story_goes_on_as_the_story(source: Source, folder: Path) -> None:
    story = _published_story(folder)
    tokenizer = Tokenizer.from_str(source.tokenizer.files["tokenizer.json"].decode())
    prompt = tokenizer.encode(story).ids
    assert prompt[0] == BOS
    given = prompt[: len(prompt) // 2]
    rest = prompt[len(prompt) // 2 :]
    session = Session(make_runner(source.checkpoint), step_tokens=7)
    assert list(session.run([given], len(rest))[0].tokens) == rest
