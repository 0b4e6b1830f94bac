"""Streaming equals not streaming, character for character: 300 texts in 12 scripts through the vocabularies of real models.

The texts hold emoji (families joined by U+200D, flags, skin tones, keycaps), stacked and decomposed marks, signs of directions, rare
planes, code and U+FFFD itself. What is streamed is compared with the decode of the whole, cut at its first stop match by plain search.
"""

import gzip
import json
import random
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from router.request import Piece
from router.text import stops
from router.text.detokenize import Detokenizer
from router.text.output import ChoiceOutput, OutputSpec
from router.text.tokenizer import ModelText, load
from router.text.vocabulary import byte_alphabet
from shared.tokenizer import TokenizerBundle
from shared.types import Finished, FinishReason, TokenDelta
from tests.fakes import tiny_tokenizers
from worker.sources.gguf.file import open_file
from worker.sources.gguf.metadata import read_metadata
from worker.sources.gguf.tokenizer import read_tokenizer

TEXTS: dict[str, list[str]] = json.loads((Path(__file__).parent / "data" / "streaming_texts.json").read_text())
ALL_TEXTS = [text for texts in TEXTS.values() for text in texts]
TINY = {"byte_level": tiny_tokenizers.byte_level, "sentencepiece": tiny_tokenizers.sentencepiece}
VOCABULARIES = ("gpt-2", "qwen2", "phi-3")
REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module", params=[*TINY, *VOCABULARIES, "smollm2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    """A tokenizer as the router loads it: made here, out of a GGUF vocabulary, or the demo model's."""
    name = request.param
    if name in TINY:
        return load(tiny_tokenizers.bundle(TINY[name]()).files)
    if name == "smollm2":
        return load(TokenizerBundle.from_directory(request.getfixturevalue("demo_model")).files)
    folder = request.getfixturevalue("shared_data") / "tokenizers" / "llama_cpp_vocabs"
    path = tmp_path_factory.mktemp("vocabulary") / f"{name}.gguf"
    path.write_bytes(gzip.decompress((folder / f"ggml-vocab-{name}.gguf.gz").read_bytes()))
    return load(read_tokenizer(read_metadata(open_file(path))).files)


def ids_of(model: ModelText, text: str) -> list[int]:
    ids: list[int] = model.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def cuts(random_: random.Random, tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """`tokens` in groups of 1 to 7, as steps of a busy worker bring them."""
    groups, at = [], 0
    while at < len(tokens):
        size = random_.randint(1, 7)
        groups.append(tuple(tokens[at : at + size]))
        at += size
    return groups


def stream(model: ModelText, groups: Sequence[tuple[int, ...]], stop: Sequence[str] = ()) -> list[Piece]:
    """The pieces that a client is sent."""
    automaton = stops.build(stop) if stop else None
    spec = OutputSpec(vocabulary=model.vocabulary, prompt=(), stops=automaton, stop_tokens=frozenset())
    output = ChoiceOutput(spec, 0)
    pieces = [output.push(TokenDelta(handle=1, tokens=group)) for group in groups]
    count = sum(map(len, groups))
    end = Finished(handle=1, reason=FinishReason.LENGTH, prompt_tokens=1, output_tokens=count, cached_tokens=0)
    return [piece for piece in (*pieces, output.finish(end)) if piece is not None]


def cut_at_first_match(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """By plain search: the match that is complete first, of those the longest."""
    matches = [(text.find(string) + len(string), -len(string), string) for string in stop if string in text]
    if not matches:
        return text, None
    end, _, string = min(matches)
    return text[: end - len(string)], string


def some_stops(random_: random.Random, text: str) -> list[str]:
    """Pieces of the text, from and to any character, so that they begin and end inside tokens; some that are nearly in it, and
    what would go on after its end. One time in four nothing that is in it.
    """
    inside = []
    for _ in range(random_.randint(1, 4)):
        start = random_.randrange(max(1, len(text)))
        inside.append(text[start : start + random_.randint(1, 12)])
    nearly = [string[:-1] + "\u2603" for string in (*inside, text[-random_.randint(1, 9) :] + "?")]
    return [string for string in ((*inside, *nearly) if random_.random() < 0.75 else nearly) if string]


def test_the_corpus_is_what_it_says() -> None:
    assert {script: len(texts) for script, texts in TEXTS.items()} == dict.fromkeys(TEXTS, 25)
    assert len(TEXTS) == 12
    assert len(set(ALL_TEXTS)) == 300
    together = "".join(ALL_TEXTS)
    for needed in (
        "\u200d",
        "\U0001f1eb\U0001f1f7",
        "\U0001f3fd",
        "\ufe0f",
        "\U000e0067",
        "\u200f",
        REPLACEMENT,
        "\r\n",
    ):
        assert needed in together
    assert sum(unicodedata.combining(char) > 0 for char in together) > 200
    assert max(map(ord, together)) == 0x10FFFD


def test_a_stream_of_any_cut_is_the_whole_text_and_every_moment_of_it_a_beginning(model: ModelText) -> None:
    random_ = random.Random(1)
    for text in ALL_TEXTS:
        tokens = ids_of(model, text)
        whole = model.decode(tokens, skip_special_tokens=True)
        assert whole == model.tokenizer.decode(tokens, skip_special_tokens=True)
        assert whole.count(REPLACEMENT) == text.count(REPLACEMENT)
        for groups in ([(token,) for token in tokens], cuts(random_, tokens), cuts(random_, tokens)):
            shown = ""
            for piece in stream(model, groups):
                shown += piece.text
                assert whole.startswith(shown)
            assert shown == whole


def test_the_text_that_goes_in_is_the_text_that_comes_out(model: ModelText) -> None:
    composed = model.tokenizer.normalizer is not None and "NFC" in str(model.tokenizer.normalizer)
    for text in ALL_TEXTS:
        expected = unicodedata.normalize("NFC", text) if composed else text
        assert "".join(piece.text for piece in stream(model, [(token,) for token in ids_of(model, text)])) == expected


def test_stop_strings_cut_a_stream_where_they_cut_the_whole_text(model: ModelText) -> None:
    random_ = random.Random(2)
    matched = straddled = unmatched = 0
    for text in ALL_TEXTS:
        tokens = ids_of(model, text)
        whole = model.decode(tokens, skip_special_tokens=True)
        for _ in range(3):
            stop = some_stops(random_, whole)
            expected, string = cut_at_first_match(whole, stop)
            for groups in ([(token,) for token in tokens], cuts(random_, tokens)):
                pieces = stream(model, groups, stop)
                assert "".join(piece.text for piece in pieces) == expected
                assert pieces[-1].ended is not None
                assert pieces[-1].ended.stop_string == string
                assert all(piece.ended is None for piece in pieces[:-1])
                matched += string is not None
                unmatched += string is None
                straddled += string is not None and len([piece for piece in pieces if piece.text]) < len(pieces)
    assert matched > 1000
    assert unmatched > 200
    assert straddled > 300


def test_the_token_that_completes_a_stop_string_is_the_last_that_counts(model: ModelText) -> None:
    random_ = random.Random(3)
    for text in ALL_TEXTS:
        tokens = ids_of(model, text)
        whole = model.decode(tokens, skip_special_tokens=True)
        stop = some_stops(random_, whole)
        pieces = stream(model, cuts(random_, tokens), stop)
        counted = [token for piece in pieces for token in piece.tokens]
        assert counted == tokens[: len(counted)]
        if pieces[-1].ended is not None and pieces[-1].ended.stop_string is not None:
            assert cut_at_first_match(model.decode(counted, skip_special_tokens=True), stop)[1] is not None
            before = model.decode(counted[:-1], skip_special_tokens=True).rstrip(REPLACEMENT)
            assert cut_at_first_match(before, stop)[1] is None
        else:
            assert counted == tokens


def test_no_text_waits_longer_than_an_unfinished_character_or_stop_string_needs(model: ModelText) -> None:
    random_ = random.Random(4)
    for text in random_.sample(ALL_TEXTS, 60):
        tokens = ids_of(model, text)
        stop = [string for string in some_stops(random_, "\u2603" + text) if string not in text] or ["\u2603"]
        pieces = stream(model, [(token,) for token in tokens], stop)
        shown = ""
        for number, piece in enumerate(pieces[: len(tokens)], 1):
            shown += piece.text
            so_far = model.vocabulary.text_bytes(tokens[:number], skip_special=True)
            finished = len(so_far.decode("utf-8", "ignore"))
            assert len(shown) >= finished - (max(map(len, stop)) - 1)


def test_a_prompt_and_its_continuation_make_the_text_wherever_it_is_cut(model: ModelText) -> None:
    """The output is the text after the characters that the prompt completes."""
    random_ = random.Random(5)
    for text in random_.sample(ALL_TEXTS, 100):
        tokens = ids_of(model, text)
        cut = random_.randrange(1, len(tokens))
        whole = model.decode(tokens, skip_special_tokens=True)
        before = model.vocabulary.text_bytes(tokens[:cut], skip_special=True).decode("utf-8", "ignore")
        detokenizer = Detokenizer(model.vocabulary, tokens[:cut])
        shown = "".join([*map(detokenizer.push, tokens[cut:]), detokenizer.finish()])
        assert before + shown == whole


# ---- tokens that are no text


@cache
def _alphabet() -> dict[str, int]:
    return byte_alphabet()


def plain_bytes(tokenizer: Tokenizer, token: int, *, byte_level: bool) -> bytes:
    """A token's bytes, the short way."""
    text = tokenizer.id_to_token(token) or ""
    if byte_level:
        return bytes(_alphabet()[c] for c in text) if all(c in _alphabet() for c in text) else text.encode()
    if len(text) == 6 and text.startswith("<0x"):
        return bytes.fromhex(text[3:5])
    return text.replace("\u2581", " ").encode()


def random_tokens(random_: random.Random, model: ModelText, bytes_alone: Sequence[int]) -> list[int]:
    """Any tokens, and often those of single bytes, most of which are no characters."""
    size = model.tokenizer.get_vocab_size()
    return [
        random_.choice(bytes_alone) if random_.random() < 0.6 else random_.randrange(size)
        for _ in range(random_.randint(1, 60))
    ]


def test_random_tokens_never_fail_and_never_show_a_character_early(model: ModelText) -> None:
    random_ = random.Random(6)
    byte_level = model.vocabulary.rules.byte_level
    special = model.vocabulary.special
    size = model.tokenizer.get_vocab_size()
    high = [t for t in range(size) if t not in special and len(b := model.vocabulary.bytes_of(t)) == 1 and b >= b"\x80"]
    assert len(high) > 100  # SmolLM2 lacks the bytes that never stand in UTF-8, and some that its corpus did not hold
    for _ in range(300):
        tokens = random_tokens(random_, model, high)
        kept = [token for token in tokens if token not in special]
        data = b"".join(plain_bytes(model.tokenizer, token, byte_level=byte_level) for token in kept)
        if model.vocabulary.rules.strip and data.startswith(b" "):
            data = data[1:]
        whole = data.decode("utf-8", "replace")
        for groups in ([(token,) for token in tokens], cuts(random_, tokens)):
            shown = ""
            for piece in stream(model, groups):
                shown += piece.text
                assert whole.startswith(shown)
            assert shown == whole


def test_ids_that_the_tokenizer_does_not_know_give_no_text(model: ModelText) -> None:
    size = model.tokenizer.get_vocab_size()
    unknown = [size + 10_000, 2**31, 2**32 - 1]
    tokens = ids_of(model, "a b")
    pieces = stream(model, [(token,) for token in (*unknown, *tokens, *unknown)])
    assert "".join(piece.text for piece in pieces).strip() == "a b"
