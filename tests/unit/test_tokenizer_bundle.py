"""The tokenizer bundle: names, contents, digest, and that it stays light."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tokenizer import FILE_NAMES, TokenizerBundle, TokenizerFilesError

_FILES = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"a": 1}', "chat_template.jinja": b"{{ x }}"}


def test_a_bundle_written_out_and_read_back_is_the_same(tmp_path: Path) -> None:
    bundle = TokenizerBundle.from_files(_FILES)
    again = TokenizerBundle.from_directory(bundle.write_to(tmp_path / "made"))
    assert again == bundle


def test_a_directory_gives_only_the_files_of_a_tokenizer(tmp_path: Path) -> None:
    for name in (*_FILES, "model.safetensors", "config.json"):
        (tmp_path / name).write_bytes(b"{}")
    assert set(TokenizerBundle.from_directory(tmp_path).files) == set(_FILES)


def test_the_digest_does_not_depend_on_the_order_of_files() -> None:
    reversed_files = dict(reversed(_FILES.items()))
    assert TokenizerBundle.from_files(reversed_files).digest == TokenizerBundle.from_files(_FILES).digest


@given(st.sampled_from(sorted(_FILES)), st.binary(max_size=20))
def test_the_digest_changes_exactly_when_a_content_does(name: str, content: bytes) -> None:
    changed = TokenizerBundle.from_files({**_FILES, name: content})
    assert (changed.digest == TokenizerBundle.from_files(_FILES).digest) == (content == _FILES[name])


def test_bytes_that_move_from_one_file_to_another_change_the_digest() -> None:
    one = TokenizerBundle.from_files({"tokenizer.json": b"ab", "tokenizer_config.json": b"c"})
    other = TokenizerBundle.from_files({"tokenizer.json": b"a", "tokenizer_config.json": b"bc"})
    assert one.digest != other.digest


def test_a_missing_tokenizer_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFilesError, match=r"tokenizer\.json"):
        TokenizerBundle.from_directory(tmp_path)


@pytest.mark.parametrize("name", ["../evil", "code.py", "/etc/passwd", "sub/tokenizer.json"])
def test_a_name_that_is_no_tokenizer_file_is_refused(name: str) -> None:
    with pytest.raises(TokenizerFilesError, match="not a tokenizer's file"):
        TokenizerBundle.from_files({**_FILES, name: b"x"})


def test_a_bundle_cannot_be_changed() -> None:
    bundle = TokenizerBundle.from_files(_FILES)
    with pytest.raises(TypeError):
        bundle.files["tokenizer.json"] = b"other"  # type: ignore[index]


def test_importing_the_bundle_imports_neither_torch_nor_transformers() -> None:
    program = "import sys, shared.tokenizer; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert FILE_NAMES[0] == "tokenizer.json"
