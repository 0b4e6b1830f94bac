"""Calls of the public gRPC API that are wrong: the method, the message or its bytes, and the field that the status must name."""

import math
from collections.abc import Iterator
from typing import Any

from protos import inference_pb2 as pb

# Method, message or bytes, field
Wrong = tuple[str, Any, str]

GENERATE = "Generate"
TOKENIZE = "Tokenize"
DETOKENIZE = "Detokenize"

_BEYOND = 2**31  # no token id of any model
_MOST = 2**32 - 1

# Field of Sampling -> values that no one may send to any model.
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (math.nan, math.inf, -math.inf, -0.1, -1e30, 2.1, 1e30),
    "top_p": (math.nan, math.inf, 0.0, -0.5, 1.1, 1e30),
    "min_p": (math.nan, math.inf, -0.1, 1.1),
    "min_tokens": (_MOST,),
    "stop": ([""], ["a", ""], ["a"] * 17, ["a" * 257], ["é" * 257]),
    "stop_token_ids": (list(range(65)), [_BEYOND], [_MOST]),
    "logprobs": (21, 1_000, _MOST),
    "presence_penalty": (math.nan, math.inf, -2.1, 2.1, 1e30),
    "frequency_penalty": (math.nan, -math.inf, -2.1, 2.1, 1e30),
    "repetition_penalty": (math.nan, math.inf, 0.0, -1.0, 10.1, 1e-30),
    "logit_bias": (
        *({5: math.nan}, {5: math.inf}, {5: -100.1}, {5: 101}, {_BEYOND: 1}, {_MOST: 1}),
        dict.fromkeys(range(1025), 1),
    ),
    "allowed_token_ids": (list(range(4_097)), [_BEYOND], [1, _MOST]),
    "bad_words": (
        *([pb.TokenIds()], [pb.TokenIds(ids=[1] * 33)], [pb.TokenIds(ids=[1])] * 65),
        *([pb.TokenIds(ids=[_BEYOND])], [pb.TokenIds(ids=[1, _MOST])]),
    ),
    "bad_word_strings": ([""], ["x"] * 65, ["x" * 257], ["a", ""], ["ab " * 85]),
    "prompt_logprobs": (21, 1_000, _MOST),
    "max_tokens": (0, _MOST, 10**6),
}

# Field of GenerateRequest -> the same.
REQUEST: dict[str, tuple[Any, ...]] = {
    "n": (0, 65, _MOST),
    "request_id": ("x" * 257, "x" * 100_000),
    "truncate_prompt_tokens": (0,),
}


def _chat(*messages: tuple[str, str]) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=role, content=content) for role, content in messages])


_CHATS: tuple[tuple[pb.Chat, str], ...] = (
    (pb.Chat(), "chat.messages"),
    (_chat(("", "x")), "chat.messages[0].role"),
    (_chat(("king", "x")), "chat.messages[0].role"),
    (_chat(("User", "x")), "chat.messages[0].role"),
    (_chat(("user", "x"), ("king", "x")), "chat.messages[1].role"),
    (_chat(*[("user", "x")] * 4_097), "chat.messages"),
    (_chat(("user", "a " * 600_000)), "chat.messages"),
)

_PROMPTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "prompt"),
    ({"prompt": "a " * 200_000}, "prompt"),
    ({"prompt": "a " * 600_000}, "prompt"),
    ({"prompt_tokens": pb.TokenIds()}, "prompt_tokens"),
    ({"prompt_tokens": pb.TokenIds(ids=[_BEYOND])}, "prompt_tokens"),
    ({"prompt_tokens": pb.TokenIds(ids=[5, _MOST])}, "prompt_tokens"),
    ({"prompt_tokens": pb.TokenIds(ids=[5] * 200_000)}, "prompt_tokens"),
    ({"prompt_tokens": pb.TokenIds(ids=[5] * 1_100_000)}, "prompt_tokens"),
)


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field, of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


_NOT_UTF8 = b"\xff\xfe"

# Bytes that are no message of the method.
BYTES: dict[str, tuple[bytes, ...]] = {
    GENERATE: (
        *(b"\xff" * 50, b"\x0a\xff", b"\x00", b"\x07\x07", b"\x32\x7f\x00", _field(6, b"\xff"), b"\x22\x05\x0a\xff"),
        *(_field(number, _NOT_UTF8) for number in (1, 2, 3)),
        _field(5, _field(1, _field(1, _NOT_UTF8))),
        _field(5, _field(1, _field(2, _NOT_UTF8))),
        _field(6, _field(8, _NOT_UTF8)),
        _field(6, b"\x92\x01\x02" + _NOT_UTF8),  # field 18
        b"\x0b" * 200,
    ),
    TOKENIZE: (b"\xff" * 50, b"\x0a\xff", _field(1, _NOT_UTF8), _field(2, _NOT_UTF8), b"\x0b" * 200),
    DETOKENIZE: (b"\xff" * 50, b"\x0a\xff", _field(1, _NOT_UTF8), b"\x12\xff", b"\x0b" * 200),
}


def _generates() -> Iterator[tuple[pb.GenerateRequest, str]]:
    for name, values in SAMPLING.items():
        for value in values:
            yield pb.GenerateRequest(prompt="a", sampling=pb.Sampling(**{name: value})), name
    for name, values in REQUEST.items():
        yield from ((pb.GenerateRequest(**{"prompt": "a", name: value}), name) for value in values)
    yield from ((pb.GenerateRequest(chat=chat), name) for chat, name in _CHATS)
    yield from ((pb.GenerateRequest(**fields), name) for fields, name in _PROMPTS)
    both = pb.Sampling(min_tokens=5, max_tokens=4)
    yield pb.GenerateRequest(prompt="a", sampling=both), "min_tokens"
    none = pb.Sampling(min_tokens=1, max_tokens=0)
    yield pb.GenerateRequest(prompt="a", sampling=none, echo=True), "min_tokens"


def wrong_calls() -> Iterator[Wrong]:
    """Calls of one request each."""
    yield from ((GENERATE, request, name) for request, name in _generates())
    for method, several in BYTES.items():
        yield from ((method, data, "request") for data in several)
    yield TOKENIZE, pb.TokenizeRequest(), "text"
    yield TOKENIZE, pb.TokenizeRequest(text="a " * 600_000), "text"
    yield from ((TOKENIZE, pb.TokenizeRequest(chat=chat), name) for chat, name in _CHATS)
    for tokens in ([_BEYOND], [1, _MOST], [5] * 200_000):
        yield DETOKENIZE, pb.DetokenizeRequest(tokens=tokens), "tokens"


def wrong_frames() -> Iterator[tuple[pb.SessionRequest, str]]:
    """Frames of a session, each of which gets one error; a start's request_id is its own."""
    yield pb.SessionRequest(), "frame"
    yield pb.SessionRequest(start=pb.GenerateRequest(prompt="a")), "request_id"
    for i, (request, name) in enumerate(_generates()):
        if name != "request_id":
            request.request_id = f"wrong-{i}"
            yield pb.SessionRequest(start=request), name
