"""Whatever words somebody gives us to tell an error with, the error can be sent."""

import pytest

from protos import worker_pb2 as pb
from shared import rpc
from shared.errors import MOST_WORDS, InvalidRequest

WORDS = ["plain", "half \ud800 of a pair", "x" * 100_000, "\U0001f600" * 100_000, "\udfff" * 10_000]


@pytest.mark.parametrize("words", WORDS)
def test_words_are_text_of_a_length_that_any_wire_takes(words):
    error = InvalidRequest(words, param=words)
    assert pb.Reject(message=error.message).message.encode()
    assert pb.Reject(param=error.param).param.encode()
    assert 0 < len(error.message) < MOST_WORDS * 10
    assert InvalidRequest(error.message).message[:MOST_WORDS] == error.message[:MOST_WORDS]


@pytest.mark.parametrize("words", WORDS)
def test_a_status_fits_the_trailers_of_a_call(words):
    status = rpc.to_status(InvalidRequest(words, param="name"))
    quoted = sum(1 if 32 <= byte < 127 else 3 for byte in status.message.encode())
    assert quoted + status.ByteSize() * 4 / 3 < 8_000
    assert status.message
