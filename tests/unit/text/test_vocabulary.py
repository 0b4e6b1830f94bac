"""Token bytes, for every kind of decoder."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from router.text.tokenizer import load
from router.text.vocabulary import Vocabulary, byte_alphabet
from shared.decoder import UnsupportedDecoder, read_rules
from tests.fakes import tiny_tokenizers

KINDS = {
    "byte_level": tiny_tokenizers.byte_level(),
    "sentencepiece": tiny_tokenizers.sentencepiece(),
    "gemma_like": tiny_tokenizers.gemma_like(),
    "metaspace": tiny_tokenizers.metaspace(),
}


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return load(tiny_tokenizers.bundle(tokenizer).files).vocabulary


VOCABULARIES = {name: vocabulary(tokenizer) for name, tokenizer in KINDS.items()}


def test_the_byte_alphabet_is_that_of_the_library():
    assert set(byte_alphabet()) == set(decoders_alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def decoders_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


@given(data=st.data(), skip=st.booleans())
def test_byte_level_text_equals_the_librarys_whole_decode(data, skip):
    tokenizer, words = KINDS["byte_level"], VOCABULARIES["byte_level"]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40))
    assert words.decode(tokens, skip_special=skip) == tokenizer.decode(tokens, skip_special_tokens=skip)


def _byte_runs_are_text(words: Vocabulary, tokenizer: Tokenizer, tokens: list[int]) -> bool:
    run = b""
    for token in [*tokens, None]:
        text = "" if token is None else tokenizer.id_to_token(token)
        if text.startswith("<0x"):
            run += words.bytes_of(token)
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


@pytest.mark.parametrize("kind", ["sentencepiece", "gemma_like", "metaspace"])
@given(text=st.text(max_size=30), more=st.lists(st.integers(258, 370), max_size=8))
def test_sentencepiece_text_equals_the_librarys_wherever_its_byte_runs_are_text(kind, text, more):
    tokenizer, words = KINDS[kind], VOCABULARIES[kind]
    tokens = tokenizer.encode(text, add_special_tokens=False).ids + more
    kept = [t for t in tokens if t not in words.special and t < tokenizer.get_vocab_size()]
    if kind != "metaspace" and _byte_runs_are_text(words, tokenizer, kept):
        assert words.decode(kept) == tokenizer.decode(kept, skip_special_tokens=True)
    if kind == "metaspace" and not any(tokenizer.id_to_token(t).startswith("<0x") for t in kept):
        assert words.decode(kept) == tokenizer.decode(kept, skip_special_tokens=True)


def test_a_wrong_byte_spoils_only_itself():
    words = VOCABULARIES["gemma_like"]
    tokens = [3 + byte for byte in "é".encode() + b"\xff"]
    assert words.decode(tokens) == "é\ufffd"


def test_an_id_beyond_the_vocabulary_has_no_bytes():
    assert VOCABULARIES["byte_level"].bytes_of(10**6) == b""


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "CTC"}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
    ],
)
def test_a_decoder_that_is_not_exact_per_token_is_refused(decoder):
    with pytest.raises(UnsupportedDecoder):
        read_rules(decoder)


def test_rules_read_a_nested_sequence():
    inner = json.loads(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]).__getstate__())
    rules = read_rules({"type": "Sequence", "decoders": [inner, {"type": "Fuse"}]})
    assert rules.byte_fallback
    assert rules.replace == (("▁", " "),)
