"""The parts of a router's stream, one by one."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import worker_pb2 as pb
from shared.errors import InvalidRequest
from worker.servicer.acks import Acks
from worker.servicer.assembly import Assembly
from worker.servicer.credits import shares
from worker.servicer.outbound import Outbound
from worker.servicer.presence import Presence
from worker.servicer.settings import StreamSettings


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12), st.randoms(use_true_random=False))
def test_everything_up_to_the_ack_has_been_taken_and_nothing_more_could_be_said(gaps, random):
    acks, seq, came, taken = Acks(), 0, [], set()
    for gap, also in gaps:
        seq += gap
        acks.came(seq)
        came.append(seq)
        if also and came:
            one = random.choice(came)
            acks.taken(one)
            taken.add(one)
        assert all(each in taken for each in came if each <= acks.acked)
        assert acks.acked >= max([each for each in came if all(e in taken for e in came if e <= each)], default=0)
    for each in came:
        acks.taken(each)
    assert acks.acked == seq


def test_a_seq_that_does_not_increase_is_refused():
    acks = Acks()
    acks.came(5)
    for seq in (5, 4, 0):
        with pytest.raises(InvalidRequest, match="increase"):
            acks.came(seq)


@given(st.integers(-3, 40), st.lists(st.integers(1, 99), unique=True, max_size=7), st.integers(0, 50))
def test_credits_are_all_free_places_and_even(free, streams, turn):
    given_out = shares(free, streams, turn)
    assert set(given_out) == set(streams)
    if streams:
        assert sum(given_out.values()) == max(0, free)
        assert max(given_out.values()) - min(given_out.values()) <= 1


@given(st.lists(st.integers(1, 99), unique=True, min_size=1, max_size=7))
def test_the_last_place_goes_round(streams):
    assert {s for turn in range(len(streams)) for s, n in shares(1, streams, turn).items() if n} == set(streams)


def submit(seq: int, length: int, *tokens: int) -> pb.Submit:
    return pb.Submit(seq=seq, prompt_len=length, prompt_tokens=tokens, choices=[pb.ChoiceSpec(handle=seq)])


def test_parts_of_several_submits_may_mix():
    assembly = Assembly(limit=2)
    one, two = assembly.begin(submit(1, 3, 1)), assembly.begin(submit(2, 2))
    assembly.part(pb.SubmitPart(seq=2, prompt_tokens=[7, 8]))
    assert (one.missing, two.missing, two.tokens) == (2, 0, [7, 8])
    assert assembly.holding([1, 2]) == [one]
    assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[2, 3]))
    assert one.tokens == [1, 2, 3]


def test_a_void_submit_gathers_nothing_and_still_counts_its_parts():
    assembly = Assembly(limit=1)
    partial = assembly.begin(submit(1, 3))
    partial.void = True
    assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[1, 2]))
    assert partial.tokens == []
    assert assembly.holding([1]) == []
    with pytest.raises(InvalidRequest, match="more tokens"):
        assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[1, 2]))


def down(nonce: int) -> pb.Down:
    return pb.Down(pong=pb.Pong(nonce=nonce))


LOAD, KV = pb.Down(load=pb.Load()), pb.Down(kv_delta=pb.KvDelta())


def outbound(kv: list[pb.Down]) -> Outbound:
    return Outbound(make_load=lambda: LOAD, next_kv=lambda: kv.pop() if kv else None)


async def test_urgent_frames_then_steps_then_load_then_kv():
    out = outbound([KV])
    out.want_load()
    out.put([down(2), down(3)])
    out.put([down(4)])
    out.put_urgent(down(1))
    assert out.undelivered == 2
    got = [await out.get() for _ in range(6)]
    assert got == [down(1), down(2), down(3), down(4), LOAD, KV]
    assert out.undelivered == 0


async def test_a_kv_frame_lies_between_steps():
    kv = [KV, KV]
    out = outbound(kv)
    out.put([down(1)])
    got = [await out.get() for _ in range(2)]
    out.put([down(2)])
    got += [await out.get() for _ in range(2)]
    assert got == [down(1), KV, down(2), KV]


async def test_loads_that_wait_are_one():
    out = outbound([])
    for _ in range(5):
        out.want_load()
    assert await out.get() == LOAD
    getting = asyncio.ensure_future(out.get())
    await asyncio.sleep(0)
    assert not getting.done()
    out.put([down(1)])
    assert await getting == down(1)


async def test_closing_lets_steps_out_and_abandoning_does_not():
    out = outbound([KV])
    out.put([down(1)])
    out.close()
    assert [await out.get(), await out.get()] == [down(1), None]
    out = outbound([])
    out.put([down(1)])
    out.abandon()
    assert await out.get() is None


def test_an_empty_bundle_is_none():
    out = outbound([])
    out.put([])
    assert out.undelivered == 0


def test_a_router_is_silent_after_five_seconds_of_silence():
    presence = Presence(StreamSettings(stall_after=1e9), 0.0)
    assert not presence.silent(4.9)
    presence.heard(4.9)
    assert not presence.silent(9.8)
    assert presence.silent(9.9)


def test_time_in_which_the_worker_itself_stood_still_is_no_silence():
    presence = Presence(StreamSettings(), 0.0)
    for tenth in range(1, 20):
        assert not presence.silent(tenth / 10)
    assert not presence.silent(31.9)  # thirty seconds without a look
    assert not presence.silent(32.8)
    assert not presence.silent(33.7)
    assert not presence.silent(34.6)
    assert presence.silent(35.2)
