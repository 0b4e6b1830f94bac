"""Where and with what a figure was made."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("octavo", "torch", "transformers", "grpcio", "aiohttp")


def cpu_model(cpuinfo: str) -> str:
    """The name of the first processor in the text of /proc/cpuinfo; the architecture's where it tells none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def machine() -> dict[str, str | int]:
    """The processor and how many cores this process may use."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    return {"cpu": cpu_model(text), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def versions() -> dict[str, str]:
    """Of Python and of the packages that matter, where they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The checkout's commit, with a "+" where tracked files differ from it; None outside of a checkout."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
