"""Log-probabilities in OpenAI's shapes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from router.edge.http import logprobs
from router.request import Logprobs, TokenText


def token(text: bytes, logprob: float = -1.0) -> TokenText:
    return TokenText(token=0, logprob=logprob, text=text)


def row(*texts: bytes) -> Logprobs:
    return Logprobs(sampled=token(texts[0]), top=tuple(token(text, -2.0 - i) for i, text in enumerate(texts[1:])))


def test_partial_characters_are_shown_by_their_bytes_and_stay_apart() -> None:
    assert logprobs.shown("é".encode()) == "é"
    assert logprobs.shown(b"\xf0\x9f") == "bytes:\\xf0\\x9f"
    told = logprobs.completion([row(b"a", b"\xf0", b"\xf1")], logprobs.Offsets())
    assert list(told["top_logprobs"][0]) == ["bytes:\\xf1", "bytes:\\xf0", "a"]


def test_the_sampled_tokens_own_value_holds_among_alternatives() -> None:
    told = logprobs.completion([row(b"a", b"b", b"a")], logprobs.Offsets())
    assert told["top_logprobs"] == [{"a": -1.0, "b": -2.0}]


def test_an_impossible_token_has_openais_lowest_value() -> None:
    rows = [Logprobs(sampled=token(b"a", -math.inf), top=())]
    assert logprobs.chat(rows)["content"][0]["logprob"] == -9999.0
    assert logprobs.completion(rows, logprobs.Offsets())["token_logprobs"] == [-9999.0]


def test_a_character_of_several_tokens_starts_where_its_first_one_does() -> None:
    pieces = ["a", *(bytes([byte]) for byte in "😀".encode()), "b"]
    texts = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    told = logprobs.completion([row(text) for text in texts], logprobs.Offsets())
    assert told["text_offset"] == [0, 1, 1, 1, 1, 2]


@given(st.lists(st.text(min_size=1, max_size=4), max_size=8), st.integers(0, 8))
def test_offsets_are_characters_before_the_token_also_over_chunks(words: list[str], cut: int) -> None:
    rows = [row(word.encode()) for word in words]
    offsets = logprobs.Offsets()
    got = [o for part in (rows[:cut], rows[cut:]) for o in logprobs.completion(part, offsets)["text_offset"]]
    assert got == [len("".join(words[:i])) for i in range(len(words))]
