"""`octavo prefix` on a store, as an operator runs it."""

import io
import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from octavo.cli.stored import STORE_ENV


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tenants.db"
    monkeypatch.setenv(STORE_ENV, str(path))
    return path


def test_prefixes_are_put_listed_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system.txt"
    system.write_text("You are a clerk.\n")
    models = ("--model", "tiny", "big-*", "--model", "llama-*")
    assert main(["prefix", "put", "clerk", "--system", str(system), *models]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("Once upon a time\n"))
    assert main(["prefix", "put", "tale", "--text", "-"]) == 0
    capsys.readouterr()
    assert main(["prefix", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [{name: each[name] for name in each if name != "created"} for each in listed] == [
        {"name": "clerk", "system": "You are a clerk.", "models": ["tiny", "big-*", "llama-*"]},
        {"name": "tale", "text": "Once upon a time\n", "models": ["*"]},
    ]
    assert main(["prefix", "list"]) == 0
    table = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
    assert table[1:] == [["clerk", "system", "16", "tiny,big-*,llama-*"], ["tale", "text", "17", "*"]]
    assert main(["prefix", "delete", "tale"]) == 0
    assert main(["prefix", "delete", "tale"]) == 1
    assert "no public prefix 'tale'" in capsys.readouterr().err


def test_a_prefix_is_a_system_message_or_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prefix", "put", "clerk"])
    assert "required" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--text", "--system"])
def test_bytes_that_are_no_utf8_are_no_prefix_whatever_the_locale(
    option: str, tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong").write_bytes(b"abc\xff")
    assert main(["prefix", "put", "x", option, str(tmp_path / "wrong")]) == 1
    loose = io.TextIOWrapper(io.BytesIO(b"abc\xff"), encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", loose)
    assert main(["prefix", "put", "x", option, "-"]) == 1
    assert capsys.readouterr().err.count("is not UTF-8 text") == 2
    assert not store.exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\u00e9".encode()), encoding="ascii"))
    assert main(["prefix", "put", "x", option, "-"]) == 0
    capsys.readouterr()
    assert main(["prefix", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0][option[2:]] == "\u00e9"
