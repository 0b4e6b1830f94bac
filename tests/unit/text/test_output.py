"""C33 and C39: a choice's pieces and counts, whatever the cut into steps."""

from hypothesis import given
from hypothesis import strategies as st

from router.request import Piece
from router.text import stops
from router.text.output import ChoiceOutput, OutputSpec
from shared.types import Finished, FinishReason, TokenDelta, TokenLogprobs
from tests.unit.text.test_vocabulary import KINDS, VOCABULARIES

EOS = 2


def spec(*stop: str, stop_tokens: tuple[int, ...] = (EOS,)) -> OutputSpec:
    automaton = stops.build(stop) if stop else None
    return OutputSpec(
        vocabulary=VOCABULARIES["byte_level"], prompt=[5], stops=automaton, stop_tokens=frozenset(stop_tokens)
    )


def encode(text: str) -> list[int]:
    return KINDS["byte_level"].encode(text, add_special_tokens=False).ids


def row(token: int) -> TokenLogprobs:
    return TokenLogprobs(sampled=-float(token), top=((token, -float(token)), (1, -9.0)))


def finished(count: int, reason: FinishReason = FinishReason.LENGTH, stop_token: int | None = None) -> Finished:
    return Finished(
        handle=1, reason=reason, prompt_tokens=1, output_tokens=count, cached_tokens=0, stop_token=stop_token
    )


def run(output: ChoiceOutput, tokens: list[int], step: int, end: Finished) -> list[Piece]:
    pieces = []
    for at in range(0, len(tokens), step):
        part = tuple(tokens[at : at + step])
        delta = TokenDelta(handle=1, tokens=part, logprobs=tuple(map(row, part)))
        pieces.append(output.push(delta))
    pieces.append(output.finish(end))
    return [piece for piece in pieces if piece is not None]


@given(st.text("END ab\n", max_size=40), st.integers(1, 9))
def test_c33_c39_text_tokens_logprobs_and_count_do_not_depend_on_the_steps(text, step):
    tokens = encode(text)
    results = []
    for size in (1, step):
        output = ChoiceOutput(spec("END", "\n\n"), 0)
        pieces = run(output, tokens, size, finished(len(tokens)))
        joined = "".join(piece.text for piece in pieces)
        ids = [token for piece in pieces for token in piece.tokens]
        assert output.counted == len(ids) == sum(len(piece.logprobs) for piece in pieces)
        assert [piece.ended is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert output.counted + output.overshoot == len(tokens)
        results.append((joined, ids, pieces[-1].ended))
    assert results[0] == results[1]


def test_c33_the_token_that_completes_a_match_counts_and_is_the_last():
    output = ChoiceOutput(spec("EN"), 0)
    tokens = encode("ab") + encode("E") + encode("N") + encode("D")
    pieces = run(output, tokens, 2, finished(len(tokens)))
    assert "".join(piece.text for piece in pieces) == "ab"
    assert [t for piece in pieces for t in piece.tokens] == tokens[:4]
    assert pieces[-1].ended is not None
    assert pieces[-1].ended.stop_string == "EN"
    assert (output.counted, output.overshoot) == (4, 1)


def test_c33_a_match_inside_a_token_cuts_that_tokens_text():
    output = ChoiceOutput(spec("ell"), 0)
    hello = KINDS["byte_level"].token_to_id("Hello")
    piece = output.push(TokenDelta(handle=1, tokens=(hello,)))
    assert piece is not None
    assert (piece.text, piece.tokens, output.counted) == ("H", (hello,), 1)


def test_held_back_text_is_shown_at_an_end_without_a_match():
    output = ChoiceOutput(spec("END"), 0)
    pieces = run(output, encode("xEN"), 1, finished(3))
    assert "".join(piece.text for piece in pieces) == "xEN"
    assert pieces[-1].ended is not None
    assert pieces[-1].ended.reason == "length"


def test_a_stop_token_counts_and_shows_no_text():
    comma = encode(",")[0]
    output = ChoiceOutput(spec(stop_tokens=(comma,)), 0)
    pieces = run(output, [*encode("a"), comma], 1, finished(2, FinishReason.STOP, comma))
    assert "".join(piece.text for piece in pieces) == "a"
    assert output.counted == 2
    assert pieces[-1].ended is not None
    assert (pieces[-1].ended.reason, pieces[-1].ended.stop_token) == ("stop", comma)


def test_logprobs_carry_each_tokens_own_bytes():
    half = KINDS["byte_level"].token_to_id("ðŁĺ")
    output = ChoiceOutput(spec(), 0)
    piece = output.push(TokenDelta(handle=1, tokens=(half,), logprobs=(row(half),)))
    assert piece is not None
    assert piece.text == ""
    assert piece.logprobs[0].sampled.text == "😀".encode()[:3]
    assert piece.logprobs[0].top[1].text == b"<|im_start|>"


def test_a_stop_string_completed_by_the_last_flush_still_ends_it():
    output = ChoiceOutput(spec("\ufffd"), 0)
    half = KINDS["byte_level"].token_to_id("ðŁĺ")
    pieces = run(output, [half], 1, finished(1))
    assert pieces[-1].ended is not None
    assert pieces[-1].ended.stop_string == "\ufffd"
    assert "".join(piece.text for piece in pieces) == ""
