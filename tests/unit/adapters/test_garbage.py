"""Whatever bytes and values stand in an adapter's files, they are read or refused: nothing else is ever raised, and nothing hangs."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import OctavoError
from tests.fakes import adapters as fakes
from worker.adapters.peft import read

BASE = fakes.base()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    [*fakes.config(), "exclude_modules", "use_new", "target_parameters", "trainable_token_indices"]
)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    directory = fakes.write(tmp_path_factory.mktemp("valid"))
    files = ("adapter_config.json", "adapter_model.safetensors")
    config, weights = ((directory / name).read_bytes() for name in files)
    return config, weights


def attempt(config: bytes, weights: bytes) -> None:
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "adapter_config.json").write_bytes(config)
        (directory / "adapter_model.safetensors").write_bytes(weights)
        try:
            version = read(directory, BASE, 1 << 20)
        except OctavoError as error:
            assert error.message  # noqa: PT017 - one of two ways that are right
        else:
            assert 0 < version.rank <= BASE.max_rank


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.floats(0, 1),
)
def test_bytes_of_the_weights_that_are_others(
    valid: tuple[bytes, bytes], edits: list[tuple[float, int]], cut: float
) -> None:
    config, weights = valid
    changed = bytearray(weights)
    for where, value in edits:
        changed[int(where**2 * len(changed))] = value  # mostly in the header
    attempt(config, bytes(changed if cut > 0.3 else changed[: int(cut * len(changed))]))


@settings(max_examples=300, deadline=None)
@given(changes=st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3))
def test_values_of_the_configuration_that_are_others(valid: tuple[bytes, bytes], changes: dict[str, Any]) -> None:
    config, weights = valid
    attempt(json.dumps(json.loads(config) | changes).encode(), weights)


@settings(max_examples=200, deadline=None)
@given(key=st.text(max_size=20), field=st.sampled_from(["dtype", "shape", "data_offsets", None]), value=VALUES)
def test_values_of_the_header_that_are_others(
    valid: tuple[bytes, bytes], key: str, field: str | None, value: Any
) -> None:
    config, weights = valid
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    if field is None:
        header[key] = value
    else:
        next(iter(header.values()))[field] = value
    packed = json.dumps(header).encode()
    attempt(config, len(packed).to_bytes(8, "little") + packed + weights[8 + length :])


@settings(max_examples=300, deadline=None)
@given(pattern=st.text(st.sampled_from("ab.*+?()[]|\\^$d1{},-_"), max_size=24), value=VALUES)
def test_patterns_of_any_kind(valid: tuple[bytes, bytes], pattern: str, value: Any) -> None:
    config, weights = valid
    attempt(json.dumps(json.loads(config) | {"rank_pattern": {pattern: value}}).encode(), weights)
