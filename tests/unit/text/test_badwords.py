"""Bad words given as text are spelled as published models' tokenizers spell them inside an output."""

import gzip
from pathlib import Path

import pytest

from router.text.badwords import spellings
from router.text.tokenizer import load
from worker.sources.gguf.file import open_file
from worker.sources.gguf.metadata import read_metadata
from worker.sources.gguf.tokenizer import read_tokenizer

OWN = ("damn", "hello world", "123", "naïve", "你好", " padded", "don't", "\n\n", "\t", " \n")


@pytest.mark.parametrize("name", ["gpt-2", "phi-3", "qwen2"])
def test_both_spellings_of_hard_strings_read_back_behind_other_tokens(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    folder = shared_data / "tokenizers" / "llama_cpp_vocabs"
    file = tmp_path / "vocabulary.gguf"
    file.write_bytes(gzip.decompress((folder / f"ggml-vocab-{name}.gguf.gz").read_bytes()))
    text = load(read_tokenizer(read_metadata(open_file(file))).files)
    hard = (folder / "ggml-vocab-common.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:46]
    before = list(text.tokenizer.encode("x", add_special_tokens=False).ids)
    for string in (*OWN, *(string for string in hard if string)):
        words = spellings(text, (string,), "bad_word_strings")
        read = [text.decode([*before, *word], skip_special_tokens=False) for word in words]
        assert read == [f"x{string}", f"x {string}"], string
