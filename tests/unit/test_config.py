"""A configuration comes from flags, environment, YAML and defaults, in that order, or from nowhere and with a name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from shared.config import ByteSize, ConfigError, load, parse


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample."""

    name: str = field(metadata={"help": "a name, 100% required"})
    count: int = 3
    rate: float = 0.5
    fast: bool = True
    folder: Path = Path("here")
    hosts: tuple[str, ...] = ()
    mode: Literal["a", "b"] = "a"
    memory: Literal["auto"] | ByteSize = "auto"
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")


def sample(*argv: str, **environ: str) -> Sample:
    return load(Sample, argv, prog="sample", env_prefix="X_", environ=environ)


def test_a_flag_beats_the_environment_which_beats_yaml_which_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: yaml\ncount: 10\nrate: 1\nmode: b\n")
    got = sample("--config", str(file), "--count", "30", X_COUNT="20", X_RATE="2")
    assert got == Sample(name="yaml", count=30, rate=2.0, mode="b")


def test_every_type_is_read_from_flags(tmp_path: Path) -> None:
    flags = ["--name=n", "--rate=1e-3", "--no-fast", "--folder=/x", "--hosts=a:1, b:2", "--hosts=c:3", "--memory=2GiB"]
    got = sample(*flags, "--limit=7")
    expected = Sample(
        name="n", rate=0.001, fast=False, folder=Path("/x"), hosts=("a:1", "b:2", "c:3"), memory=2 << 30, limit=7
    )
    assert got == expected


def test_yaml_has_its_own_lists_booleans_and_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: 5\nhosts: [a, b]\nfast: false\nlimit: null\nmemory: auto\n")
    assert sample(X_CONFIG=str(file)) == Sample(name="5", hosts=("a", "b"), fast=False)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1KiB", 1024), ("1.5 MB", 1_500_000), ("2g", 2 * 10**9), ("3GiB", 3 << 30)],
)
def test_byte_sizes_have_units(text: str, size: int) -> None:
    assert parse(ByteSize, text, "x") == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1XB", "GiB"])
def test_what_is_no_byte_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="x:"):
        parse(ByteSize, text, "x")


@pytest.mark.parametrize(
    ("argv", "environ", "named"),
    [
        ([], {}, "--name"),
        (["--name=n", "--count=x"], {}, "--count"),
        (["--name=n", "--mode=c"], {}, "--mode"),
        (["--name=n", "--count=-1"], {}, "count must not be negative"),
        (["--name=n", "--nonsense=1"], {}, "--nonsense"),
        (["--name=n", "--config=/absent"], {}, "/absent"),
        (["--name=n"], {"X_RATE": "fast"}, "X_RATE"),
        (["--name=n"], {"X_FAST": "perhaps"}, "X_FAST"),
        (["--name=n"], {"X_MEMORY": "lots"}, "auto|bytes"),
    ],
)
def test_what_is_wrong_is_named_with_status_2(
    argv: list[str], environ: dict[str, str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        sample(*argv, **environ)
    assert caught.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        *("nmae: x\n", "- a\n", "a: [\n", "name: n\ncount: x\n"),
        *("count: " + "9" * 5000, "[" * 5000, "count: 2026-13-45", "\0"),  # of which YAML cannot make values
    ],
    ids=["unknown", "list", "open", "value", "digits", "depth", "date", "zero"],
)
def test_wrong_yaml_is_named(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(SystemExit):
        sample("--name=n", "--config", str(file))
    assert "c.yaml" in capsys.readouterr().err


def test_help_tells_flags_defaults_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sample("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--memory auto|bytes" in text
    assert "a name, 100% required (required; X_NAME)" in text
    assert "(default: 3; X_COUNT)" in text
