"""How choices end of themselves, resumed ones too, and what their ends tell (case C39)."""

import pytest

from shared.types import FinishReason, TokenLogprobs
from tests.unit.scheduler.rig import EOS, VOCAB, Rig, sampling
from worker.scheduler.finish import natural_end
from worker.sequence import SequenceState

PROMPT = [(5 * i) % 47 for i in range(40)]


def sequence(rig: Rig, outputs: list[int], **options: object) -> SequenceState:
    rig.submit(PROMPT, **options)  # type: ignore[arg-type]
    (seq,) = rig.scheduler._registry.all()
    seq.tokens += outputs
    return seq


def test_eos_ends_only_once_min_tokens_are_out() -> None:
    seq = sequence(Rig(), [1, 2, EOS[0]], ignore_eos=False, min_tokens=3)
    assert natural_end(seq) is None
    seq.tokens.append(EOS[0])
    end = natural_end(seq)
    assert end is not None
    assert (end.reason, end.stop_token) == (FinishReason.STOP, EOS[0])


def test_ignored_eos_does_not_end_and_a_stop_token_does() -> None:
    seq = sequence(Rig(), [EOS[0]], stop_token_ids=(7,))
    assert natural_end(seq) is None
    seq.tokens.append(7)
    end = natural_end(seq)
    assert end is not None
    assert end.stop_token == 7


def test_a_stop_token_at_the_last_position_counts_as_stop() -> None:
    seq = sequence(Rig(), [1, 7], stop_token_ids=(7,), max_tokens=2)
    end = natural_end(seq)
    assert end is not None
    assert end.reason is FinishReason.STOP


def test_the_context_ends_a_choice_by_length() -> None:
    rig = Rig(max_model_len=48)
    keys = rig.submit(PROMPT, max_tokens=100)
    rig.run()
    assert rig.finished[keys[0]].reason is FinishReason.LENGTH
    assert rig.finished[keys[0]].output_tokens == 8
    rig.assert_as_alone(keys)


@pytest.mark.parametrize("depth", [0, 1])
def test_resumed_choices_go_on_where_they_were(depth: int) -> None:
    rig = Rig(depth=depth, max_running=2)
    whole = rig.submit(PROMPT, n=3, max_tokens=9) if rig.config.max_running >= 3 else []
    for index in range(3):
        probe = rig.request(PROMPT, n=3, max_tokens=9)
        rig.requests[0, index] = (probe, probe.choices[index])
        whole.append((0, index))
    full = [rig.expected((0, index)) for index in range(3)]
    keys = rig.submit(PROMPT, outputs=[full[0][:4], (), full[2][:8]], max_tokens=9)
    rig.run()
    assert [rig.tokens[key] for key in keys] == [full[0][4:], full[1], full[2][8:]]
    assert [rig.finished[key].output_tokens for key in keys] == [9, 9, 9]
    rig.assert_whole()


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ([3, 7], {"stop_token_ids": (7,)}, FinishReason.STOP),
        ([3, EOS[0]], {"ignore_eos": False}, FinishReason.STOP),
        ([3, 4], {"max_tokens": 2}, FinishReason.LENGTH),
        ([3] * 8, {"max_tokens": 100}, FinishReason.LENGTH),
    ],
)
def test_a_resumed_choice_that_has_ended_already_ends_at_once(
    given: list[int], options: dict[str, object], reason: FinishReason
) -> None:
    rig = Rig(max_model_len=48)
    ended, alive = rig.submit(PROMPT, outputs=[given, [5]], **options)  # type: ignore[arg-type]
    assert rig.finished[ended].reason is reason
    assert rig.finished[ended].output_tokens == len(given)
    assert not rig.tokens[ended]
    assert alive not in rig.finished
    rig.run()
    rig.assert_as_alone([alive])
    rig.assert_whole()


def test_min_tokens_of_a_resumed_choice_count_from_the_original_prompt() -> None:
    rig = Rig()
    keys = rig.submit(PROMPT, outputs=[[3, 4]], min_tokens=3, max_tokens=8, ignore_eos=False)
    rig.run()
    rig.assert_as_alone(keys)
    (start,) = rig.executor.plans[0].starts
    assert (start.prompt_len, len(start.tokens)) == (40, 42)


def test_a_replay_is_charged_to_no_one() -> None:
    rig = Rig()
    rig.submit(PROMPT, outputs=[[3, 4]], max_tokens=3)
    rig.step()
    rig.run()
    replayed = rig.scheduler._accounts._last_served
    fresh = Rig()
    fresh.submit(PROMPT, max_tokens=1)
    fresh.run()
    assert (replayed, fresh.scheduler._accounts._last_served) == (2.0, 42.0)


def test_c39_counts_are_the_same_alone_forked_and_preempted() -> None:
    rig = Rig(num_blocks=8, max_running=6)
    keys = [rig.submit([i] * 20, max_tokens=30)[0] for i in range(4)] + rig.submit([9] * 20, n=2, max_tokens=30)
    rig.run()
    assert rig.scheduler.stats(rig.now).preemptions > 0
    for key in keys:
        finished = rig.finished[key]
        assert (finished.prompt_tokens, finished.output_tokens) == (20, 30)
        assert len(rig.tokens[key]) == 30
    rig.assert_as_alone(keys)


def test_logprobs_come_with_their_tokens_only_when_asked_for() -> None:
    rig = Rig()
    asked, silent = rig.submit([1, 2], logprobs=0)[0], rig.submit([1, 2])[0]
    plan = rig.scheduler.schedule(0.0)
    assert plan is not None
    output = rig.scheduler.apply(plan, rig.executor.execute(plan).result(), 0.0)
    deltas = {delta.handle: delta for _, delta in output.deltas}
    assert deltas[asked[1]].logprobs == (TokenLogprobs(sampled=-1.0),)
    assert deltas[silent[1]].logprobs == ()


def test_the_rig_knows_what_is_asked() -> None:
    assert sampling().max_tokens == 8
    assert max(EOS) < VOCAB
