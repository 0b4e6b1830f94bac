"""What is refused, and with which words (cases C19, C26, C27)."""

from dataclasses import replace

import pytest

from shared.types import Choice, FinishReason, RejectCode, Rejected, Tenant, TokenRequest
from tests.unit.scheduler.rig import VOCAB, Rig, config, sampling


def refused(rig: Rig, request: TokenRequest) -> Rejected:
    output = rig.scheduler.submit(1, request, rig.now)
    assert not output.finished
    ((stream, rejected),) = output.rejected
    assert (stream, rejected.seq) == (1, request.seq)
    rig.scheduler.check_integrity()
    return rejected


def changed(rig: Rig, **changes: object) -> TokenRequest:
    return replace(rig.request([1, 2, 3]), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("prompt_tokens", {"prompt_tokens": ()}),
        ("prompt_tokens", {"prompt_tokens": (1, VOCAB)}),
        ("prompt_tokens", {"prompt_tokens": (1, -1)}),
        ("choices", {"choices": ()}),
        ("n", {"choices": tuple(Choice(handle=100 + i, index=i) for i in range(5))}),
        ("choices.handle", {"choices": (Choice(handle=7, index=0), Choice(handle=7, index=1))}),
        ("choices.index", {"choices": (Choice(handle=7, index=0), Choice(handle=8, index=0))}),
        ("choices.index", {"choices": (Choice(handle=7, index=-1),)}),
        (
            "choices.index",
            {"choices": (Choice(handle=7, index=1, output_tokens=(3,)),) * 1 + (Choice(handle=8, index=1),)},
        ),
        ("choices.output_tokens", {"choices": (Choice(handle=7, index=0, output_tokens=(3,)),)}),
        ("choices.output_tokens", {"choices": (Choice(handle=7, index=0, output_tokens=(VOCAB,)),), "resumed": True}),
        ("stop_token_ids", {"sampling": sampling(stop_token_ids=(VOCAB,))}),
        ("max_tokens", {"sampling": sampling(max_tokens=0)}),
        ("min_tokens", {"sampling": sampling(min_tokens=9)}),
        ("temperature", {"sampling": sampling(temperature=float("nan"))}),
        ("top_p", {"sampling": sampling(top_p=0.0)}),
        ("min_p", {"sampling": sampling(min_p=1.5)}),
        ("top_k", {"sampling": sampling(top_k=-1)}),
        ("seed", {"sampling": sampling(seed=1 << 64)}),
        ("logprobs", {"sampling": sampling(logprobs=21)}),
        ("tenant.weight", {"tenant": Tenant(id="t", weight=0.0)}),
        ("tenant.priority", {"tenant": Tenant(id="t", top_class=-1)}),
    ],
)
def test_a_malformed_request_is_refused_by_name(param: str, changes: dict[str, object]) -> None:
    rig = Rig()
    rejected = refused(rig, changed(rig, **changes))
    assert (rejected.code, rejected.param) == (RejectCode.INVALID, param)
    assert param in rejected.message
    assert rig.scheduler.schedule(0.0) is None


def test_c27_a_handle_in_use_is_refused_and_the_first_request_goes_on() -> None:
    rig = Rig()
    (key,) = rig.submit([1, 2, 3])
    rig.step()
    twin = replace(rig.request([4, 5]), choices=(Choice(handle=key[1], index=0),))
    rejected = refused(rig, twin)
    assert (rejected.code, rejected.param) == (RejectCode.INVALID, "choices.handle")
    rig.run()
    rig.assert_as_alone([key])
    assert not rig.scheduler.submit(1, replace(twin, seq=90), rig.now).rejected, "the handle is free again"


def test_c27_two_streams_may_use_the_same_handle() -> None:
    rig = Rig()
    (first,) = rig.submit([1, 2, 3], stream=1)
    twin = replace(rig.request([4, 5, 6, 7]), choices=(Choice(handle=first[1], index=0),))
    (second,) = rig.send(twin, stream=2)
    rig.run()
    rig.assert_as_alone([first, second])


def test_an_adapter_is_refused_as_unavailable() -> None:
    rig = Rig()
    code = refused(rig, changed(rig, adapter_digest=b"x" * 32)).code
    assert code is RejectCode.ADAPTER_VERSION_UNAVAILABLE


def test_a_prompt_that_fills_the_context_is_too_long_and_told_both_lengths() -> None:
    rig = Rig(max_model_len=40)
    rejected = refused(rig, rig.request([1] * 40))
    assert rejected.code is RejectCode.TOO_LONG
    assert "40" in rejected.message
    (key,) = rig.submit([1] * 39, max_tokens=9)
    rig.run()
    assert rig.finished[key].reason is FinishReason.LENGTH
    assert rig.finished[key].output_tokens == 1


def test_what_could_never_get_its_blocks_is_refused_at_once_with_needed_and_available() -> None:
    rig = Rig(num_blocks=4)
    rejected = refused(rig, rig.request([1] * 60, max_tokens=6))
    assert rejected.code is RejectCode.TOO_LONG
    for number in ("60", "6", "5", "4"):  # prompt, output, blocks needed, blocks there
        assert number in rejected.message
    (key,) = rig.submit([1] * 60, max_tokens=5)
    rig.run()
    rig.assert_as_alone([key])


def test_choices_whose_copies_could_never_fit_are_refused_at_once() -> None:
    rig = Rig(num_blocks=4)
    assert refused(rig, rig.request([1] * 50, n=2, max_tokens=2)).code is RejectCode.TOO_LONG
    keys = rig.submit([1] * 40, n=2, max_tokens=2)
    rig.run()
    rig.assert_as_alone(keys)


def test_c19_a_tenants_queue_is_bounded_and_the_answer_says_when_to_retry() -> None:
    rig = Rig(max_running=1, max_waiting_per_tenant=3)
    keys = [rig.submit([1, 2])[0] for _ in range(5)]
    for key in keys[3:]:
        assert rig.rejected[key].code is RejectCode.QUEUE_FULL
        assert rig.rejected[key].retry_after_ms
    other = rig.submit([1, 2], tenant=Tenant(id="other"))
    rig.run()
    rig.assert_as_alone(keys[:3] + other)


def test_c19_when_the_total_is_full_the_newest_of_the_largest_backlog_is_bounced_and_not_the_arrival() -> None:
    rig = Rig(max_running=1, max_waiting=4)
    many, few = Tenant(id="many"), Tenant(id="few")
    keys = [rig.submit([1, 2], tenant=many, stream=1)[0] for _ in range(4)]
    (arrival,) = rig.submit([3, 4], tenant=few, stream=2)
    assert list(rig.rejected) == [keys[3]]
    assert rig.rejected[keys[3]].code is RejectCode.QUEUE_FULL
    (own,) = rig.submit([5, 6], tenant=many, stream=1)
    assert own in rig.rejected, "its own backlog is the largest, and it is the newest of it"
    rig.run()
    rig.assert_as_alone([*keys[:3], arrival])


def test_c19_a_backlog_is_weighed() -> None:
    rig = Rig(max_running=1, max_waiting=4)
    heavy, light = Tenant(id="heavy", weight=10.0), Tenant(id="light")
    heavies = [rig.submit([1, 2], tenant=heavy)[0] for _ in range(3)]
    (one,) = rig.submit([1, 2], tenant=light)
    rig.submit([1, 2], tenant=Tenant(id="third"))
    assert list(rig.rejected) == [one]
    assert not rig.rejected.keys() & set(heavies)


def test_a_bounced_request_leaves_nothing_behind() -> None:
    rig = Rig(max_running=2, max_waiting=1)
    rig.submit([1, 2], n=2)
    bounced = rig.submit([1, 2], n=2)
    assert rig.rejected.keys() == set(bounced)
    rig.run()
    rig.assert_whole()


def test_settings_that_can_never_be_right_are_refused_by_name() -> None:
    for field in ("max_running", "step_tokens", "max_waiting"):
        with pytest.raises(ValueError, match=field):
            config(**{field: 0})
    for field, value in (("depth", -1), ("watermark", 1.0), ("tenant_share", 0.0)):
        with pytest.raises(ValueError, match=field):
            config(**{field: value})
