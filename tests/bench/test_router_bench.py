"""The router's bench without sockets: the index stays flat under prompts that never come again, and stacks become parts."""

from octavo.bench.router import decision, memory, profile


def test_the_index_holds_no_more_after_many_unique_prompts_than_the_workers_have_blocks() -> None:
    few, many = memory.unique_prompts([600, 2_400], workers=3, blocks=400, tokens=128)
    assert few["entries"] == many["entries"] == 3 * 400 // 4


def test_a_decision_is_made_over_all_workers_and_leaves_nothing_expected() -> None:
    found = decision.decisions(workers=4, tokens=256, prompts=2, rounds=3)
    assert all(value > 0 for value in found.values())


def test_a_sample_belongs_to_the_innermost_part_that_it_is_in() -> None:
    stacks = [
        "run (a/main.py:1);step (router/fleet/stream.py:9);push (router/text/output.py:4) 3",
        "run (a/main.py:1) 1",
    ]
    assert profile.shares(stacks) == {"text: detokenizing, stop strings": 0.75, profile.REST: 0.25}
