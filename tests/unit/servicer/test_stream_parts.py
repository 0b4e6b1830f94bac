"""The parts of a router's stream, one by one."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import worker_pb2 as pb
from shared import rpc
from shared.errors import InvalidRequest
from shared.types import PromptLogprobs, TokenDelta, TokenLogprobs
from shared.wire import worker as wire
from worker.servicer.acks import Acks
from worker.servicer.assembly import Assembly
from worker.servicer.bundle import MOST, Bundle, frames_of, run_length
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
    assert (one.missing, two.missing, two.prompt.tokens) == (2, 0, [7, 8])
    assert assembly.holding([1, 2]) == [one]
    assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[2, 3]))
    assert one.prompt.tokens == [1, 2, 3]


def test_a_void_submit_gathers_nothing_and_still_counts_its_parts():
    assembly = Assembly(limit=1)
    partial = assembly.begin(submit(1, 3))
    partial.void = True
    assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[1, 2]))
    assert partial.prompt.tokens == []
    assert assembly.holding([1]) == []
    with pytest.raises(InvalidRequest, match="more tokens"):
        assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[1, 2]))


def resumed(seq: int, prompt: int, *outputs: int) -> pb.Submit:
    choices = [pb.ChoiceSpec(handle=10 + i, index=i, output_len=count) for i, count in enumerate(outputs)]
    return pb.Submit(seq=seq, prompt_len=prompt, choices=choices, resumed=True)


def test_given_outputs_come_in_parts_as_the_prompt_does():
    assembly = Assembly(limit=1)
    partial = assembly.begin(resumed(1, 2, 3, 0, 1))
    assert partial.longest == 5
    assembly.part(pb.SubmitPart(seq=1, handle=10, output_tokens=[5, 6]))
    assembly.part(pb.SubmitPart(seq=1, prompt_tokens=[1, 2]))
    assembly.part(pb.SubmitPart(seq=1, handle=12, output_tokens=[8]))
    assert partial.missing == 1
    assembly.part(pb.SubmitPart(seq=1, handle=10, output_tokens=[7]))
    assert {handle: output.tokens for handle, output in partial.outputs.items()} == {10: [5, 6, 7], 12: [8]}
    assert partial.missing == 0
    with pytest.raises(InvalidRequest, match="waits for none"):
        assembly.part(pb.SubmitPart(seq=1, handle=10, output_tokens=[7]))


@pytest.mark.parametrize(
    ("handle", "tokens", "words"), [(11, [1], "announced no outputs"), (10, [1, 2], "more tokens")]
)
def test_outputs_that_were_not_announced_are_refused(handle: int, tokens: list[int], words: str):
    assembly = Assembly(limit=1)
    assembly.begin(resumed(1, 2, 1))
    with pytest.raises(InvalidRequest, match=words):
        assembly.part(pb.SubmitPart(seq=1, handle=handle, output_tokens=tokens))


def down(nonce: int) -> pb.Down:
    return pb.Down(pong=pb.Pong(nonce=nonce))


def ends(*nonces: int) -> Bundle:
    return Bundle(ends=tuple(map(down, nonces)))


LOAD, KV = pb.Down(load=pb.Load()), pb.Down(kv_delta=pb.KvDelta())


def outbound(kv: list[pb.Down]) -> Outbound:
    return Outbound(make_load=lambda: LOAD, next_kv=lambda: kv.pop() if kv else None)


async def test_urgent_frames_then_steps_then_load_then_kv():
    out = outbound([KV])
    out.want_load()
    out.put(ends(2, 3))
    out.put(ends(4))
    out.put_urgent(down(1))
    assert out.undelivered == 2
    got = [await out.get() for _ in range(6)]
    assert got == [down(1), down(2), down(3), down(4), LOAD, KV]
    assert out.undelivered == 0


async def test_a_kv_frame_lies_between_steps():
    kv = [KV, KV]
    out = outbound(kv)
    out.put(ends(1))
    got = [await out.get() for _ in range(2)]
    out.put(ends(2))
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
    out.put(ends(1))
    assert await getting == down(1)


async def test_closing_lets_steps_out_and_abandoning_does_not():
    out = outbound([KV])
    out.put(ends(1))
    out.close()
    assert [await out.get(), await out.get()] == [down(1), None]
    out = outbound([])
    out.put(ends(1))
    out.abandon()
    assert await out.get() is None


ROWS = st.tuples(st.integers(1, 4), st.lists(st.integers(0, 99), min_size=1, max_size=3))


@given(st.lists(st.lists(ROWS, max_size=4, unique_by=lambda row: row[0]), min_size=1, max_size=9))
def test_merged_steps_give_every_choice_the_same_tokens_and_logprobs(steps):
    bundles = [
        Bundle(
            step_seq=number,
            acked_seq=2 * number,
            deltas=tuple(
                TokenDelta(handle=h, tokens=tuple(ts), logprobs=tuple(TokenLogprobs(sampled=-t) for t in ts))
                for h, ts in rows
            ),
            ends=(down(number),),
        )
        for number, rows in enumerate(steps)
    ]
    frames = list(frames_of(bundles))
    assert [frame.pong.nonce for frame in frames if frame.HasField("pong")] == list(range(len(steps)))
    deltas = [d for f in frames if f.HasField("step_batch") for d in wire.step_from_pb(f.step_batch).deltas]
    for handle in range(1, 5):
        want = [token for rows in steps for h, tokens in rows if h == handle for token in tokens]
        assert [token for d in deltas if d.handle == handle for token in d.tokens] == want
        assert [-row.sampled for d in deltas if d.handle == handle for row in d.logprobs] == want
    for frame in frames:
        if frame.HasField("step_batch"):
            assert (frame.step_batch.step_seq, frame.step_batch.acked_seq) == (len(steps) - 1, 2 * len(steps) - 2)


def test_merged_steps_join_a_prompts_rows_ahead_of_its_tokens():
    def scored(handle: int, first: int, count: int) -> TokenDelta:
        rows = tuple(TokenLogprobs(sampled=-float(first + i)) for i in range(count))
        return TokenDelta(handle=handle, tokens=(), prompt=PromptLogprobs(first=first, rows=rows))

    other = TokenDelta(handle=9, tokens=(3,))
    bundles = [
        Bundle(deltas=(scored(1, 1, 16), other)),
        Bundle(deltas=(other, scored(1, 17, 190))),
        Bundle(deltas=(scored(2, 207, 3),), ends=(down(1),), ended=frozenset({1})),  # an heir goes on
        Bundle(deltas=(TokenDelta(handle=2, tokens=(7,)),)),
    ]
    frames = list(frames_of(bundles))
    assert frames[-1].HasField("pong")
    got = [delta for frame in frames[:-1] for delta in wire.step_from_pb(frame.step_batch).deltas]
    pieces = [delta.prompt for delta in got if delta.prompt is not None]
    assert [-row.sampled for piece in pieces for row in piece.rows] == list(range(1, 210))
    assert [piece.first for piece in pieces] == [1, 201, 207]
    assert [delta.tokens for delta in got if delta.handle == 2][-1] == (7,)
    assert [token for delta in got if delta.handle == 9 for token in delta.tokens] == [3, 3]


def test_tokens_of_a_handle_that_is_used_again_do_not_pass_its_end():
    used = Bundle(deltas=(TokenDelta(handle=1, tokens=(5,)),))
    ended = Bundle(ends=(down(1),), ended=frozenset({1}))
    assert run_length([used, ended, used, used]) == 2
    assert run_length([used] * (MOST + 5)) == MOST
    assert run_length([ended, ended]) == 2


async def test_steps_that_gathered_go_out_as_one():
    out = outbound([])
    for token in range(300):
        out.put(Bundle(step_seq=token, deltas=(TokenDelta(handle=1, tokens=(token,)),)))
    got = [await out.get() for _ in range(3)]
    assert out.undelivered == 0
    assert [token for frame in got for token in frame.step_batch.tokens] == list(range(300))


def test_the_most_that_is_merged_of_one_choice_fits_a_frame():
    top = tuple((2**32 - 1, -1.0) for _ in range(20))
    delta = TokenDelta(handle=2**32 - 1, tokens=(2**32 - 1,), logprobs=(TokenLogprobs(sampled=-1.0, top=top),))
    bundles = [Bundle(step_seq=2**63, acked_seq=2**63, deltas=(delta,))] * MOST
    assert all(frame.ByteSize() <= rpc.FRAME_LIMIT for frame in frames_of(bundles))


def test_a_router_is_stuck_when_too_much_waits_for_too_long():
    presence = Presence(StreamSettings(), 0.0)
    assert not presence.stuck(1.0, 257)
    assert not presence.stuck(1.4, 300)
    assert not presence.stuck(1.6, 256)
    assert not presence.stuck(1.7, 257)
    assert presence.stuck(2.2, 257)


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
