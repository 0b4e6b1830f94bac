"""C32: deltas, joined, are the text of the whole stream, and nothing of the prompt is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.detokenize import Detokenizer, unfinished_tail
from tests.unit.text.test_vocabulary import KINDS, VOCABULARIES

ALL_KINDS = pytest.mark.parametrize("kind", sorted(KINDS))
TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "So", "Zs", "M")), max_size=40)
SAMPLES = st.one_of(
    TEXTS, st.sampled_from(["👩‍👩‍👧‍👦 fine", "สวัสดีชาวโลก", "你好，世界", "  two  spaces", "naïve café 🇫🇷"])
)


def stream(kind: str, tokens: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(VOCABULARIES[kind], prompt or [])
    return [*map(detokenizer.push, tokens), detokenizer.finish()]


def token_lists(kind: str) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, KINDS[kind].get_vocab_size() - 1), max_size=40)


@ALL_KINDS
@given(data=st.data())
def test_c32_joined_deltas_equal_the_full_decode_of_random_tokens(kind, data):
    tokens = data.draw(token_lists(kind))
    assert "".join(stream(kind, tokens)) == VOCABULARIES[kind].decode(tokens, skip_special=True)


@ALL_KINDS
@given(text=SAMPLES)
def test_c32_no_replacement_character_appears_in_valid_text(kind, text):
    tokens = KINDS[kind].encode(text, add_special_tokens=False).ids
    assert "\ufffd" not in "".join(stream(kind, tokens))


@given(text=SAMPLES, cut=st.integers(0, 200))
def test_c32_a_prompt_that_ends_inside_a_character_leaks_nothing(text, cut):
    kind, data = "byte_level", text.encode()
    cut = min(cut, len(data))
    prompt = [byte_token(byte) for byte in data[:cut]]
    shown = "".join(stream(kind, [byte_token(byte) for byte in data[cut:]], prompt))
    whole_before = data[:cut].decode("utf-8", "ignore")
    assert shown == text[len(whole_before) :]


def test_c32_a_character_that_the_output_does_not_complete_is_forgotten():
    prompt = [byte_token(byte) for byte in b"secret" + "😀".encode()[:3]]
    assert "".join(stream("byte_level", [byte_token(ord("A"))], prompt)) == "A"


def test_c32_a_special_token_ends_a_prompts_unfinished_character():
    prompt = [byte_token(byte) for byte in "😀".encode()[:2]] + [1]
    shown = "".join(stream("byte_level", [byte_token(byte) for byte in "😀".encode()[2:]], prompt))
    assert "😀" not in shown


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_a_leading_space_is_dropped_only_where_no_prompt_stands_before_it(kind):
    tokens = KINDS[kind].encode("Hello", add_special_tokens=False).ids
    assert "".join(stream(kind, tokens)) == "Hello"
    assert "".join(stream(kind, tokens, [1])) == "Hello"
    assert "".join(stream(kind, tokens, [1, *tokens])) == " Hello"


def test_a_stream_cut_inside_a_character_ends_in_one_replacement_character():
    assert "".join(stream("byte_level", [byte_token(byte) for byte in b"a\xf0\x9f"])) == "a\ufffd"


@given(st.binary(max_size=12))
def test_an_unfinished_tail_is_what_a_strict_decoder_would_wait_for(data):
    tail = unfinished_tail(data)
    assert data.endswith(tail)
    assert len(tail) <= 3
    if tail:
        with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
            tail.decode()


def byte_token(byte: int) -> int:
    """The byte-level tokenizer's token of one byte."""
    words = VOCABULARIES["byte_level"]
    return next(token for token in range(3, 259) if words.bytes_of(token) == bytes([byte]))
