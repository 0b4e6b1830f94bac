"""The public API's messages say what the router's types say, both ways where both exist."""

import pytest
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from router.edge.grpc import wire
from router.edge.http.errors import to_response
from router.request import Ended, Logprobs, Piece, SamplingOptions, TokenText, Usage
from shared import errors, rpc
from shared.wire.inference import error_from_pb, error_to_pb

KINDS = [
    errors.InvalidRequest,
    errors.ContextLengthExceeded,
    errors.RequestTooLarge,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.NotFound,
    errors.ModelNotFound,
    errors.AlreadyExists,
    errors.Overloaded,
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.Cancelled,
    errors.Internal,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("param", "retry_after"), [(None, None), ("stop", 1.25), ("n", 0.0)])
def test_errors_survive_a_sessions_event(
    kind: type[errors.OctavoError], param: str | None, retry_after: float | None
) -> None:
    error = kind("what happened", param=param, retry_after=retry_after)
    back = error_from_pb(pb.Error.FromString(error_to_pb(error).SerializeToString()))
    assert isinstance(error, type(back))
    assert errors.answer(back).grpc == errors.answer(error).grpc
    assert (back.code, back.message, back.param, back.retry_after) == (error.code, "what happened", param, retry_after)


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_and_a_rich_status_tell_the_same_error(kind: type[errors.OctavoError]) -> None:
    error = kind("what happened", param="n", retry_after=2)
    status, event = rpc.to_status(error), error_to_pb(error)
    assert (status.code, status.message) == (event.grpc_code, event.message)


@pytest.mark.parametrize(("seconds", "told"), [(0.0001, 1), (1.2341, 1235), (59.9999, 60_000), (2.0, 2_000)])
def test_nobody_is_told_to_come_back_too_early(seconds: float, told: int) -> None:
    error = errors.RateLimited("wait", retry_after=seconds)
    assert error_to_pb(error).retry_after_ms == told
    info = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(info) for detail in rpc.to_status(error).details)
    assert info.retry_delay.ToMilliseconds() == told
    assert to_response(error).headers["retry-after-ms"] == str(told)


def test_a_code_that_is_not_in_the_table_is_internal() -> None:
    assert type(error_from_pb(pb.Error(grpc_code=99, message="x"))) is errors.Internal


FLOATS = {"temperature": (0, 2), "top_p": (0.015625, 1), "min_p": (0, 1)}
INTEGERS = {"top_k": (0, 2**32 - 1), "seed": (0, 2**64 - 1), "logprobs": (0, 20), "max_tokens": (10, 2**32 - 1)}
OPTIONS = {
    **{name: st.floats(low, high, width=32) for name, (low, high) in FLOATS.items()},
    **{name: st.integers(low, high) for name, (low, high) in INTEGERS.items()},
    "min_tokens": st.integers(0, 10),
    "ignore_eos": st.booleans(),
    "stop": st.lists(st.text(min_size=1, max_size=5), max_size=4).map(tuple),
    "stop_token_ids": st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
}


@given(st.fixed_dictionaries({}, optional=OPTIONS))
def test_sampling_says_what_was_set_and_leaves_the_rest_to_the_defaults(given_: dict) -> None:
    sent = pb.GenerateRequest(prompt="x", sampling=pb.Sampling(**given_))
    got = wire.request_from_pb(pb.GenerateRequest.FromString(sent.SerializeToString()))
    assert got.sampling == SamplingOptions(**given_)


TOKENS = st.builds(TokenText, token=st.integers(0, 2**32 - 1), logprob=st.floats(-50, 0, width=32), text=st.binary())
ROWS = st.builds(Logprobs, sampled=TOKENS, top=st.lists(TOKENS, max_size=3).map(tuple))
ENDS = st.one_of(
    st.builds(Ended, reason=st.sampled_from(["stop", "length"])),
    st.builds(Ended, reason=st.just("stop"), stop_string=st.text()),
    st.builds(Ended, reason=st.just("stop"), stop_token=st.integers(0, 2**32 - 1)),
)
PIECES = st.builds(
    Piece,
    index=st.integers(0, 63),
    text=st.text(),
    tokens=st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    logprobs=st.lists(ROWS, max_size=3).map(tuple),
    ended=st.none() | ENDS,
)


def _token(token: pb.TokenLogprob) -> TokenText:
    return TokenText(token=token.token, logprob=token.logprob, text=token.text)


def _ended(chunk: pb.Chunk) -> Ended | None:
    reasons = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}
    if not chunk.finish_reason:
        return None
    by = chunk.WhichOneof("stopped_by")
    return Ended(reason=reasons[chunk.finish_reason], **({by: getattr(chunk, by)} if by else {}))


@given(PIECES)
def test_chunks_say_what_pieces_say(piece: Piece) -> None:
    chunk = pb.Chunk.FromString(wire.piece_to_pb(piece, return_tokens=True).SerializeToString())
    rows = (Logprobs(sampled=_token(r.sampled), top=tuple(map(_token, r.top))) for r in chunk.logprobs)
    back = Piece(
        index=chunk.index, text=chunk.text, tokens=tuple(chunk.tokens), logprobs=tuple(rows), ended=_ended(chunk)
    )
    assert back == piece


def test_token_ids_are_left_out_where_not_asked_for() -> None:
    piece = Piece(index=0, text="a", tokens=(1, 2))
    assert list(wire.piece_to_pb(piece, return_tokens=False).tokens) == []


def test_usage_is_told_whole() -> None:
    usage = wire.usage_to_pb(Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3, 2, 1)
