"""Both images, built without a container engine's daemon, and the commands that run them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = Path(__file__).with_name("images.sh")
WORK = ROOT / ".images"
VERSION = "0.1.0"
BUILD_SECONDS = 1800


@dataclass(frozen=True, kw_only=True)
class Containers:
    """podman over the storage that the images were built into."""

    environ: Mapping[str, str]
    mounts: tuple[str, ...]

    def podman(self, *arguments: str, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one podman command. Raises AssertionError with what it said where it fails."""
        return self._run(["podman", *arguments], timeout, check)

    def compose(self, *arguments: str, timeout: float = 300, check: bool = True, **variables: str) -> str:
        """Run one podman-compose command over the project's own file, and return what it printed."""
        program = str(Path(sys.executable).parent / "podman-compose")
        return self._run(
            [program, "-f", str(ROOT / "docker-compose.yml"), *arguments], timeout, check, variables
        ).stdout

    def _run(
        self, command: list[str], timeout: float, check: bool, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **(variables or {})}
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}\n{done.stderr}"
        return done


def _environ() -> dict[str, str]:
    settings = {"CONTAINERS_STORAGE_CONF": str(WORK / "storage.conf"), "CONTAINERS_CONF": str(WORK / "containers.conf")}
    return {**os.environ, **settings}


@pytest.fixture(scope="session")
def containers() -> Containers:
    """Builds both images first, from the tree as it stands."""
    if os.geteuid() != 0 or (shutil.which("buildah") is None and shutil.which("apt-get") is None):
        pytest.skip("images are built here as root, with buildah there or apt to install it")
    built = subprocess.run(
        ["bash", str(SCRIPT), str(WORK)], capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert built.returncode == 0, f"{built.stdout[-4000:]}\n{built.stderr[-4000:]}"
    return Containers(environ=_environ(), mounts=tuple((WORK / "mounts").read_text().split()))
