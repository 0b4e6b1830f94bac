"""Tokenizers made from GGUF vocabularies, against the ids that llama.cpp expects of its own hard strings."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from shared.tokenizer import TokenizerBundle
from worker.sources.errors import SourceError
from worker.sources.gguf.bpe import FAMILIES
from worker.sources.gguf.file import open_file
from worker.sources.gguf.metadata import Metadata, read_metadata
from worker.sources.gguf.tokenizer import read_tokenizer


def _tokenizer(bundle: TokenizerBundle) -> Tokenizer:
    return Tokenizer.from_str(bundle.files["tokenizer.json"].decode())


@pytest.fixture(scope="module")
def vocabularies(shared_data: Path) -> Path:
    return shared_data / "tokenizers" / "llama_cpp_vocabs"


def _bundle(folder: Path, name: str, tmp_path: Path) -> TokenizerBundle:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(gzip.decompress((folder / f"ggml-vocab-{name}.gguf.gz").read_bytes()))
    return read_tokenizer(read_metadata(open_file(path)))


# Of the folder's expected ids.
SERVED = ("gpt-2", "phi-3", "qwen2")
JUDGED_ELSEWHERE = {
    "llama-bpe": "the folder has its ids but no vocabulary; tests/e2e/test_judge_tokenizers.py takes that from a package",
}
NOT_SERVED = {
    "bert-bge": "WordPiece of an encoder, whose text does not come back from its tokens: no model that generates has it",
    "deepseek-llm": "its cuts are by five patterns that no served family shares, and the folder has no vocabulary to judge by",
}


def test_every_family_of_the_folder_is_served_or_named_with_the_reason(vocabularies: Path) -> None:
    found = {path.name.removeprefix("ggml-vocab-").removesuffix(".gguf.out") for path in vocabularies.glob("*.out")}
    assert found == {*SERVED, *JUDGED_ELSEWHERE, *NOT_SERVED}


def test_a_wordpiece_vocabulary_is_refused_with_the_kinds_that_are_served(vocabularies: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"tokenizer\.ggml\.model 'bert' is not served; served: gpt2, llama"):
        _bundle(vocabularies, "bert-bge", tmp_path)


@pytest.mark.parametrize("pre", ["deepseek-llm", "deepseek-coder", "falcon", "chameleon"])
def test_cuts_that_are_not_known_are_refused_with_those_that_are(pre: str) -> None:
    with pytest.raises(SourceError, match=f"'{pre}' is not served; served: .*llama-bpe.*qwen2.*tekken"):
        read_tokenizer(_metadata(pre))


@pytest.mark.parametrize("name", SERVED)
def test_hard_strings_give_the_ids_that_llama_cpp_expects_and_come_back(
    vocabularies: Path, tmp_path: Path, name: str
) -> None:
    tokenizer = _tokenizer(_bundle(vocabularies, name, tmp_path))
    texts = (vocabularies / "ggml-vocab-common.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (vocabularies / f"ggml-vocab-{name}.gguf.out").read_text().splitlines()
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=False):
        ids = [int(number) for number in line.split()]
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_are_found_in_text_and_a_text_begins_as_the_file_says(
    vocabularies: Path, tmp_path: Path
) -> None:
    bundle = _bundle(vocabularies, "phi-3", tmp_path)
    tokenizer = _tokenizer(bundle)
    assert tokenizer.encode("<|user|>", add_special_tokens=False).ids == [tokenizer.token_to_id("<|user|>")]
    assert tokenizer.encode("Hi").ids[0] == 1
    assert tokenizer.decode(tokenizer.encode("Hi").ids) == "Hi"
    assert bundle.files["chat_template.jinja"].decode().startswith("{{ bos_token }}")


def test_phi_3s_own_tokens_take_the_spaces_after_them(vocabularies: Path, tmp_path: Path) -> None:
    tokenizer = _tokenizer(_bundle(vocabularies, "phi-3", tmp_path))

    def tokens(text: str) -> list[str]:
        return [tokenizer.id_to_token(number) for number in tokenizer.encode(text, add_special_tokens=False).ids]

    assert tokens("<|user|>\n Hi<|end|>\n<|assistant|>\n") == ["<|user|>", "▁Hi", "<|end|>", "<|assistant|>"]
    assert tokens("<|endoftext|>\n") == ["<|endoftext|>", "▁", "<0x0A>"]


def test_whatever_ends_a_turn_ends_a_sequence(vocabularies: Path, tmp_path: Path) -> None:
    bundle = _bundle(vocabularies, "qwen2", tmp_path)
    generation = json.loads(bundle.files["generation_config.json"])
    turn_end = _tokenizer(bundle).token_to_id("<|im_end|>")
    assert generation["eos_token_id"] == [151643, turn_end]


# ---- small vocabularies made here

_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789'.,!", "Ġ", "Ċ"]


def _metadata(pre: str | None, merges: Sequence[str] = (), **extra: Any) -> Metadata:
    made = [merge.replace(" ", "") for merge in merges]
    tokens = ["<s>", "</s>", *_LETTERS, *dict.fromkeys(made)]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **({} if pre is None else {"tokenizer.ggml.pre": pre}),
        **extra,
    }
    return Metadata(Path("made.gguf"), {key: value for key, value in values.items() if value is not None})


def _cuts(pre: str | None, text: str) -> list[str]:
    cut = _tokenizer(read_tokenizer(_metadata(pre))).pre_tokenizer
    return [piece for piece, _ in cut.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("gpt-2", ["12345"]),
        ("smollm", ["1", "2", "3", "4", "5"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", ["123", "45"]),
        ("tekken", ["1", "2", "3", "4", "5"]),
        ("gpt-4o", ["123", "45"]),
        ("dbrx", ["123", "45"]),
        ("default", ["123", "45"]),
        (None, ["123", "45"]),
    ],
)
def test_each_family_cuts_digits_its_own_way(pre: str | None, digits: list[str]) -> None:
    assert _cuts(pre, "a12345") == ["a", *digits]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["don", "'", "T", "Ġstop", "!!", "ĠĠĠ", "Ċ", "x"]),
        ("llama-bpe", ["don", "'T", "Ġstop", "!!", "ĠĠĠĊ", "x"]),
        ("qwen2", ["don", "'T", "Ġstop", "!!", "ĠĠĠĊ", "x"]),
        ("gpt-4o", ["don'T", "Ġstop", "!!", "ĠĠĠĊ", "x"]),
        ("tekken", ["don", "'T", "Ġstop", "!!", "ĠĠĠĊ", "x"]),
    ],
)
def test_each_family_cuts_contractions_and_line_ends_its_own_way(pre: str, pieces: list[str]) -> None:
    assert _cuts(pre, "don'T stop!!   \nx") == pieces


@pytest.mark.parametrize(("pre", "pieces"), [("tekken", ["get", "HTTPResponse"]), ("qwen2", ["getHTTPResponse"])])
def test_words_end_before_a_capital_where_the_family_says(pre: str, pieces: list[str]) -> None:
    assert _cuts(pre, "getHTTPResponse") == pieces


def test_llama3_takes_a_piece_that_is_a_token_without_merging() -> None:
    merges = ["a b", "b c", "ab c"]
    unmergeable = {"tokenizer.ggml.merges": ["a b", "b c"]}
    whole, merged = (
        _tokenizer(read_tokenizer(_metadata(pre, merges, **unmergeable))) for pre in ("llama-bpe", "qwen2")
    )
    assert whole.encode("abc", add_special_tokens=False).tokens == ["abc"]
    assert merged.encode("abc", add_special_tokens=False).tokens == ["ab", "c"]


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [("llama-bpe", None, True), ("smollm", None, False), ("smollm", True, True), ("llama-bpe", False, False)],
)
def test_a_text_begins_with_bos_where_the_file_or_the_family_says(pre: str, said: bool | None, begins: bool) -> None:
    bundle = read_tokenizer(_metadata(pre, **{"tokenizer.ggml.add_bos_token": said}))
    assert (_tokenizer(bundle).encode("ab").ids[0] == 0) == begins
    assert json.loads(bundle.files["tokenizer_config.json"])["add_bos_token"] == begins


def test_a_text_ends_with_eos_where_the_file_says() -> None:
    tokenizer = _tokenizer(read_tokenizer(_metadata("smollm", **{"tokenizer.ggml.add_eos_token": True})))
    assert tokenizer.encode("ab").tokens == ["a", "b", "</s>"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer.ggml.pre": "chameleon"}, "'chameleon' is not served"),
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv' is not served"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.merges": ["ab"]}, "expected two tokens and a space between"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "expected an integer"),
    ],
)
def test_a_vocabulary_that_does_not_hold_together_is_refused_by_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError, match=r"made\.gguf: ") as caught:
        read_tokenizer(_metadata("smollm", **changes))
    assert named in caught.value.message


def test_every_family_keeps_all_bytes_of_a_text() -> None:
    text = "Hello 'LL 123456 \t\r\n  x_y {ünï} 你好 🙂!!"
    for pre in FAMILIES:
        cut = _tokenizer(read_tokenizer(_metadata(pre))).pre_tokenizer
        assert sum(len(piece) for piece, _ in cut.pre_tokenize_str(text)) == len(text.encode()), pre


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", [1, 2, 3]),
        ("tokens", [0.5] * 3),
        ("token_type", ["a", "b", "c"]),
        ("scores", ["x", "y", "z"]),
        ("merges", [1]),
    ],
)
def test_a_list_of_another_type_is_refused_by_its_key(key: str, value: list[Any]) -> None:
    right = {"model": "gpt2" if key == "merges" else "llama", "tokens": ["a", "b", "ab"], "scores": [0.0, 0.0, 1.0]}
    values = {f"tokenizer.ggml.{name}": each for name, each in {**right, key: value}.items()}
    with pytest.raises(SourceError, match=f"tokenizer.ggml.{key}"):
        read_tokenizer(Metadata(Path("m.gguf"), values))
