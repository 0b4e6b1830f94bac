"""Step times that outlive the worker, and what becomes of files that are not what they should be."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.scheduler.steptime import ASSUMED, StepShape, StepTimes
from worker.step_store import FRESH_SECONDS, Place, StepStore, cpu_name

PLACE = Place(numerics_id="n", threads=2, cpu="a cpu")
TIMES = StepTimes([2 * each for each in ASSUMED], measured=True)


def store(folder: Path, place: Place = PLACE, now: float = 1e9) -> StepStore:
    return StepStore(folder, place, now=lambda: now)


def test_what_was_saved_is_there_for_the_next_start(tmp_path: Path) -> None:
    store(tmp_path / "not" / "there").save(TIMES)
    loaded = store(tmp_path / "not" / "there").load()
    assert loaded is not None
    assert loaded.parameters == TIMES.parameters
    assert loaded.measured


def test_nothing_is_known_at_the_first_start(tmp_path: Path) -> None:
    assert store(tmp_path).load() is None


@pytest.mark.parametrize(
    "other",
    [
        Place(numerics_id="m", threads=2, cpu="a cpu"),
        Place(numerics_id="n", threads=1, cpu="a cpu"),
        Place(numerics_id="n", threads=2, cpu="another"),
        Place(numerics_id="n", threads=2, cpu="a cpu", knots=(0, 1)),
    ],
)
def test_each_build_model_machine_and_number_of_threads_has_its_own(tmp_path: Path, other: Place) -> None:
    store(tmp_path).save(TIMES)
    assert store(tmp_path, other).load() is None
    store(tmp_path, other).save(StepTimes(measured=True))
    own, others = store(tmp_path).load(), store(tmp_path, other).load()
    assert own is not None
    assert others is not None
    assert own.parameters != others.parameters


@pytest.mark.parametrize(("age", "known"), [(0, True), (FRESH_SECONDS, True), (FRESH_SECONDS + 1, False), (-1, False)])
def test_only_fresh_ones_count(tmp_path: Path, age: float, known: bool) -> None:
    store(tmp_path).save(TIMES)
    assert (store(tmp_path, now=1e9 + age).load() is not None) is known


def test_what_rests_on_nothing_is_not_saved(tmp_path: Path) -> None:
    store(tmp_path).save(StepTimes())
    assert not list(tmp_path.iterdir())


BAD_NUMBERS: list[Any] = [-1.0, float("nan"), float("inf"), 10**400, "1", None, True, [1.0]]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize("key", ["parameters", "saved_at"])
def test_a_number_that_is_none_is_ignored(tmp_path: Path, key: str, bad: Any) -> None:
    store(tmp_path).save(TIMES)
    file = store(tmp_path).file
    content = json.loads(file.read_text())
    content[key] = [bad, *content[key][1:]] if key == "parameters" else bad
    file.write_text(json.dumps(content))
    assert store(tmp_path).load() is None


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{}", b"3", b"\xff\xfe", b"[" * 100_000, json.dumps({"parameters": [1.0] * 9}).encode()],
)
def test_a_file_that_is_something_else_is_ignored_and_written_anew(tmp_path: Path, content: bytes) -> None:
    store(tmp_path).save(TIMES)
    store(tmp_path).file.write_bytes(content)
    assert store(tmp_path).load() is None
    store(tmp_path).save(TIMES)
    assert store(tmp_path).load() is not None


@pytest.mark.parametrize("parameters", [[], [0.0] * 9, [1.0] * 8, [1.0] * 10, {"a": 1}, "123456789"])
def test_parameters_that_cannot_be_a_models_are_ignored(tmp_path: Path, parameters: Any) -> None:
    store(tmp_path).save(TIMES)
    file = store(tmp_path).file
    file.write_text(json.dumps(json.loads(file.read_text()) | {"parameters": parameters}))
    assert store(tmp_path).load() is None


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_gives_nothing_or_a_model_that_predicts(tmp_path: Path, data: st.DataObject) -> None:
    store(tmp_path).save(TIMES)
    file = store(tmp_path).file
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    loaded = store(tmp_path).load()
    assert loaded is None or loaded.predict(StepShape(rows=600, samples=1, context=9, pairs=9)) > 0


def test_a_cache_that_cannot_be_written_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "step_times").write_text("a file where the folder would be")
    store(tmp_path).save(TIMES)
    assert "cannot save step times" in caplog.text
    assert store(tmp_path).load() is None


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A Processor @ 2GHz\nmodel name\t: another\n")
    assert cpu_name(tmp_path) == "A Processor @ 2GHz"
    assert cpu_name(tmp_path / "none")
