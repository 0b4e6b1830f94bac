"""Keys of rank_pattern and alpha_pattern match what PEFT has them match, and no adapter's keys can hold up the process."""

import re

import pytest

from worker.adapters.patterns import MOST_WAYS, compiled, ways

PATHS = [f"model.layers.{layer}.{name}" for layer in (0, 1, 12) for name in ("self_attn.q_proj", "mlp.down_proj")]


@pytest.mark.parametrize(
    "key",
    [
        "q_proj",
        "model.layers.0.self_attn.q_proj",
        "^model.layers.1.self_attn.q_proj",
        r".*\.(q_proj|k_proj|v_proj)",
        r"layers\.(0|1|2|3|4|5|6|7|8|9|10|11)\..*",
        r"layers\.[0-9]+\.mlp.*",
        r"layers\.1\d?\.mlp\.(up|down)_proj",
        "down_proj|q_proj",
    ],
)
def test_what_people_write_matches_as_it_does_in_peft(key):
    (pattern,) = compiled([key])
    assert [bool(pattern.match(path)) for path in PATHS] == [
        re.match(rf"(.*\.)?({key})$", path) is not None for path in PATHS
    ]


def test_as_many_plain_names_as_a_model_has_modules_are_taken():
    names = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(128) for name in "qkvo123"]
    assert len(compiled(names)) == 896


@pytest.mark.parametrize(
    ("key", "count"),
    [("q_proj", 1), ("(a|b|c)", 3), ("(a|b)(c|d|e)", 6), ("a|(b|c)", 4), ("x?", 2), (".*", 41), ("(((a|b)|c)|d)", 8)],
)
def test_ways_are_counted(key, count):
    assert ways(key) == count


@pytest.mark.parametrize(
    "key",
    [r"(\w|.)" * 24 + "z", "(a|.|a)" * 20 + "b", "(.*)+", r"(.)\1", "(?:.)", "[(]a)*", r"\(", "[[(]|]+a", "x" * 201],
)
def test_what_could_go_back_and_forth_for_long_is_refused_unmatched(key):
    with pytest.raises(ValueError, match=r"ways to match|plain enough"):
        compiled([key])


def test_what_is_taken_at_its_worst_comes_back():
    """A pattern that escaped the count of its ways would not, before the suite's timeout."""
    worst = [".*.*.*z", r"(\w|.)" * 13 + "z", ".*" + r"(\w|.)" * 8 + "z"]
    assert max(map(ways, worst)) < MOST_WAYS
    for pattern in compiled(worst[:1]) + compiled(worst[1:2]) + compiled(worst[2:]):
        assert not any(pattern.match(path) for path in PATHS)
