"""What goes over the internal stream comes back the same, in frames of at most 64 KiB, asserted on real bytes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import worker_pb2 as pb
from shared import rpc
from shared.limits import MAX_ALLOWED, MAX_BAD_SEQUENCES, MAX_BAD_WORD, MAX_BIASED
from shared.types import (
    AbortReason,
    AdapterLoad,
    Choice,
    Finished,
    FinishReason,
    KvDelta,
    KvSnapshot,
    Load,
    PromptLogprobs,
    RejectCode,
    Rejected,
    Sampling,
    StepDeltas,
    Tenant,
    TokenDelta,
    TokenLogprobs,
    TokenRequest,
    WorkerInfo,
)
from shared.wire import worker as wire
from worker.servicer.assembly import Assembly

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKENS = st.lists(U32, max_size=20).map(tuple)
HASHES = st.lists(st.binary(min_size=16, max_size=16), max_size=20).map(tuple)

SAMPLINGS = st.builds(
    Sampling,
    temperature=FLOAT,
    top_p=FLOAT,
    top_k=U32,
    min_p=FLOAT,
    seed=U64,
    max_tokens=U32,
    min_tokens=U32,
    stop_token_ids=TOKENS,
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    presence_penalty=FLOAT,
    frequency_penalty=FLOAT,
    repetition_penalty=FLOAT.filter(bool),
    logit_bias=st.lists(st.tuples(U32, FLOAT), max_size=9).map(tuple),
    allowed_token_ids=TOKENS,
    bad_words=st.lists(TOKENS, max_size=5).map(tuple),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
REQUESTS = st.builds(
    TokenRequest,
    seq=U64,
    request_id=st.text(max_size=20),
    tenant=st.builds(
        Tenant, id=st.text(max_size=9), weight=FLOAT, salt=st.binary(max_size=20), top_class=U32, salt_from=U32
    ),
    prompt_tokens=st.lists(U32, max_size=40),
    choices=st.lists(
        st.builds(Choice, handle=U32, index=U32, output_tokens=TOKENS),
        unique_by=lambda choice: choice.handle,
        max_size=4,
    ).map(tuple),
    sampling=SAMPLINGS,
    adapter_digest=st.binary(max_size=32),
    adapter_name=st.text(max_size=20),
    numerics_id=st.text(max_size=9),
    resumed=st.booleans(),
    remaining_ms=st.none() | U32,
    traceparent=st.text(max_size=55),
)


def over_the_wire(frame: Any) -> Any:
    """As the other side gets it."""
    data = frame.SerializeToString()
    assert len(data) <= rpc.FRAME_LIMIT
    return type(frame).FromString(data)


def received(request: TokenRequest) -> TokenRequest:
    """What a worker puts together of the frames."""
    first, *parts = map(over_the_wire, wire.submit_to_pb(request))
    assembly = Assembly(limit=1)
    partial = assembly.begin(first.submit)
    for part in parts:
        assert assembly.part(part.submit_part) is partial
    assert not partial.missing
    outputs = {handle: output.tokens for handle, output in partial.outputs.items()}
    return wire.submit_from_pb(first.submit, partial.prompt.tokens, outputs)


@given(REQUESTS)
def test_a_request_survives(request):
    assert received(request) == request


@pytest.mark.parametrize("length", [0, 1, 8_191, 8_192, 8_193, 50_000])
def test_a_prompt_of_any_length_arrives_whole(length):
    tokens = [2**32 - 1 - i for i in range(length)]
    request = TokenRequest(
        seq=2**64 - 1,
        request_id="r" * 500,
        tenant=Tenant(id="t" * 500, salt=b"s" * 64),
        prompt_tokens=tokens,
        choices=tuple(Choice(handle=2**32 - 1 - i, index=i) for i in range(128)),
        sampling=Sampling(temperature=1.0, max_tokens=5, stop_token_ids=tuple(range(2**31, 2**31 + 1_000))),
        traceparent="00-" + "a" * 52,
    )
    assert received(request) == request


@pytest.mark.parametrize("given", [3_000, 20_000])
def test_given_outputs_of_any_length_arrive_whole(given):
    """At 3,000 a choice they fit in the Submit; 80,000 tokens of five bytes need frames of their own."""
    choices = tuple(Choice(handle=i, index=i, output_tokens=(2**31 + i,) * (given - i)) for i in range(4))
    sampling = Sampling(temperature=0.0, max_tokens=given + 1)
    request = TokenRequest(
        seq=1,
        request_id="r",
        tenant=Tenant(id="t"),
        prompt_tokens=[2**31] * 9_000,
        choices=(*choices, Choice(handle=9, index=9)),
        sampling=sampling,
        resumed=True,
    )
    assert received(request) == request


@pytest.mark.parametrize("reason", AbortReason)
def test_an_abort_survives(reason):
    assert wire.abort_from_pb(over_the_wire(wire.abort_to_pb([1, 2**32 - 1], reason)).abort) == ((1, 2**32 - 1), reason)


@pytest.mark.parametrize("number", [0, 99])
def test_an_abort_without_a_known_reason_is_the_clients(number):
    assert wire.abort_from_pb(pb.Abort(handles=[1], reason=number))[1] is AbortReason.CLIENT


def deltas(rows: int, tokens: int, width: int | None) -> tuple[TokenDelta, ...]:
    top = tuple((2**32 - 1 - i, -float(i)) for i in range(width or 0))
    logprobs = () if width is None else (TokenLogprobs(sampled=-0.5, top=top),) * tokens
    return tuple(
        TokenDelta(handle=2**32 - 1 - row, tokens=(2**32 - 1,) * tokens, logprobs=logprobs) for row in range(rows)
    )


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (64, 1), (4_000, 1), (300, 5), (3, 150)])
@pytest.mark.parametrize("width", [None, 0, 1, 20])
def test_a_step_of_any_size_arrives_whole_and_in_order(rows, tokens, width):
    step = StepDeltas(step_seq=2**63, acked_seq=2**63, deltas=deltas(rows, tokens, width))
    frames = [over_the_wire(frame) for frame in wire.step_to_pb(step)]
    back = [wire.step_from_pb(frame.step_batch) for frame in frames]
    assert {(part.step_seq, part.acked_seq) for part in back} == {(2**63, 2**63)}
    assert tuple(delta for part in back for delta in part.deltas) == step.deltas


@pytest.mark.parametrize("count", [1, 199, 200, 201, 512, 2_000])
@pytest.mark.parametrize("width", [0, 1, 20])
@pytest.mark.parametrize("company", [0, 3, 150])
def test_a_prompts_rows_arrive_in_order_before_the_tokens_whatever_their_number(count, width, company):
    top = tuple((2**32 - 1 - i, -float(i)) for i in range(width))
    rows = tuple(TokenLogprobs(sampled=-float(i), top=top) for i in range(count))
    (before, *others) = deltas(company + 1, 1, 20)
    scored = replace(before, handle=7, prompt=PromptLogprobs(first=5, rows=rows))
    step = StepDeltas(step_seq=2**63, acked_seq=2**63, deltas=(*others, scored))
    back = [wire.step_from_pb(over_the_wire(frame).step_batch) for frame in wire.step_to_pb(step)]
    got = [delta for part in back for delta in part.deltas]
    own = [delta for delta in got if delta.handle == 7]
    pieces = [delta.prompt for delta in own if delta.prompt is not None]
    assert [piece.first for piece in pieces] == [5 + sum(len(p.rows) for p in pieces[:i]) for i in range(len(pieces))]
    assert tuple(row for piece in pieces for row in piece.rows) == rows
    assert [delta.tokens for delta in own] == [()] * (len(own) - 1) + [before.tokens]
    assert own[-1].logprobs == before.logprobs
    assert tuple(delta for delta in got if delta.handle != 7) == tuple(others)
    for part in back:
        handles = [delta.handle for delta in part.deltas]
        assert len(set(handles)) == len(handles), "a frame names a handle once"


def test_the_largest_sampling_options_fit_a_frame_with_a_prompt():
    ids = tuple(range(2**32 - 1, 2**32 - 1 - MAX_ALLOWED, -1))
    sampling = Sampling(
        temperature=1.0,
        max_tokens=2**32 - 1,
        stop_token_ids=ids[:64],
        logit_bias=tuple((token, 100.0) for token in ids[:MAX_BIASED]),
        allowed_token_ids=ids,
        bad_words=(ids[:MAX_BAD_WORD],) * MAX_BAD_SEQUENCES,
    )
    request = TokenRequest(
        seq=2**64 - 1,
        request_id="r" * 32,
        tenant=Tenant(id="t" * 64, salt=b"s" * 64),
        prompt_tokens=list(ids[:100]),
        choices=tuple(Choice(handle=2**32 - 1 - i, index=i) for i in range(64)),
        sampling=sampling,
        traceparent="00-" + "a" * 52,
    )
    assert received(request) == request


def test_a_usual_step_is_one_frame():
    step = StepDeltas(step_seq=1, acked_seq=1, deltas=deltas(512, 1, None))
    assert len(list(wire.step_to_pb(step))) == 1


@given(
    st.builds(
        Finished,
        handle=U32,
        reason=st.sampled_from(FinishReason),
        prompt_tokens=U32,
        output_tokens=U32,
        cached_tokens=U32,
        stop_token=st.none() | U32,
        message=st.text(max_size=50),
        preemptions=U32,
        param=st.text(max_size=9),
    )
)
def test_an_end_survives(finished):
    assert wire.finish_from_pb(over_the_wire(wire.finish_to_pb(finished)).finish) == finished


@given(
    st.builds(
        Rejected,
        seq=U64,
        code=st.sampled_from(RejectCode),
        message=st.text(max_size=50),
        param=st.text(max_size=9),
        retry_after_ms=st.none() | U64,
    )
)
def test_a_reject_survives(rejected):
    assert wire.reject_from_pb(over_the_wire(wire.reject_to_pb(rejected)).reject) == rejected


LOADS = {
    name: U64
    if name in {"step_seq", "acked_seq", "waiting_uncached_tokens", "context_tokens", "waiting_pairs"}
    else U32
    for name in Load.__slots__
} | {
    "has_work": st.booleans(),
    "draining": st.booleans(),
    "predicted_step_ms": FLOAT,
    "prefill_tokens_per_s": FLOAT,
    "step_us_per_sequence": FLOAT,
    "step_us_per_context_token": FLOAT,
    "step_us_per_pair": FLOAT,
    "adapters": st.lists(
        st.builds(AdapterLoad, digest=st.binary(min_size=32, max_size=32), running=U32, waiting=U32, idle_ms=U32),
        max_size=5,
    ).map(tuple),
}


@given(st.builds(Load, **LOADS))
def test_a_load_survives(load):
    assert wire.load_from_pb(over_the_wire(wire.load_to_pb(load)).load) == load


NUMBERS = (
    "max_model_len",
    "vocab_size",
    "block_size",
    "total_blocks",
    "max_running",
    "max_adapters",
    "max_adapter_rank",
)
INFOS = {name: U32 if name in NUMBERS else st.text(max_size=9) for name in WorkerInfo.__slots__}


@given(st.builds(WorkerInfo, **(INFOS | {"eos_token_ids": TOKENS})))
def test_what_a_worker_is_survives(info):
    assert wire.info_from_pb(over_the_wire(wire.info_to_pb(info))) == info


@given(st.builds(KvDelta, epoch=U64, sequence=U64, added=HASHES, removed=HASHES))
def test_a_kv_delta_survives(delta):
    assert wire.kv_delta_from_pb(over_the_wire(wire.kv_delta_to_pb(delta)).kv_delta) == delta


@given(st.builds(KvSnapshot, epoch=U64, sequence=U64, hashes=HASHES, last=st.booleans()))
@settings(max_examples=30)
def test_a_kv_snapshot_survives(piece):
    assert wire.kv_snapshot_from_pb(over_the_wire(wire.kv_snapshot_to_pb(piece)).kv_snapshot) == piece


def test_the_largest_kv_frames_fit():
    largest = 2**64 - 1
    hashes = tuple(i.to_bytes(16, "big") for i in range(wire.SNAPSHOT_HASHES))
    over_the_wire(wire.kv_snapshot_to_pb(KvSnapshot(epoch=largest, sequence=largest, hashes=hashes, last=True)))
    half = wire.DELTA_HASHES // 2
    delta = KvDelta(epoch=largest, sequence=largest, added=hashes[:half], removed=hashes[half : 2 * half])
    over_the_wire(wire.kv_delta_to_pb(delta))
