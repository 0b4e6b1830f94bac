"""A copy of the tree to plant violations in, and the checks of `make check` run there."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

COPIED = (
    "protos",
    "shared",
    "router",
    "worker",
    "kernels",
    "octavo",
    "tools",
    "pyproject.toml",
    "constraints.txt",
    "Makefile",
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one of make's checks ended, and all that it printed."""

    passed: bool
    output: str


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A copy of the sources, the tests left out."""

    root: Path

    def append(self, name: str, text: str) -> None:
        """Add lines to a file, new or there."""
        with (self.root / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def take_types(self) -> None:
        """What mypy found of the tree itself, where `make check` has run there: it then looks at what was planted alone."""
        found = ROOT / ".mypy_cache"
        if found.is_dir():
            shutil.copytree(found, self.root / found.name, dirs_exist_ok=True)

    def check(self, target: str) -> Verdict:
        """Run one target of the copy's own Makefile with the environment that runs this test, which is taken as installed."""
        venv = Path(sys.prefix)
        command = ["make", "-o", str(venv / ".octavo-installed"), target, f"VENV={venv}"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=100, check=False)
        return Verdict(passed=done.returncode == 0, output=done.stdout + done.stderr)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A fresh copy for each test."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tmp_path / name)
    return Tree(root=tmp_path)
