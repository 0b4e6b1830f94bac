"""Commands on a store, as an operator runs them."""

from pathlib import Path

import pytest

from octavo.cli.main import main
from octavo.cli.stored import STORE_ENV
from tests.fakes.commands import WHOLE, Octavo


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands find their store; nothing is there yet."""
    path = tmp_path / "tenants.db"
    monkeypatch.setenv(STORE_ENV, str(path))
    return path


@pytest.fixture
def octavo(capsys: pytest.CaptureFixture[str]) -> Octavo:
    """Runs a command: exit status, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as end:  # argparse
            status = int(str(end.code))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def applied(store: Path, octavo: Octavo, tmp_path: Path) -> Path:
    """The store with the two tenants."""
    document = tmp_path / "tenants.yaml"
    document.write_text(WHOLE)
    assert octavo("tenant", "apply", "-f", str(document)) == (0, "acme\nother\n", "")
    return store
