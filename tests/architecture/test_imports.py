"""What each part of Octavo can be imported without, tried in a fresh interpreter in which the missing packages cannot be found."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ROOT

# Imports every module below the packages named in argv[2] where what argv[1] names cannot be found, and prints how many there were.
IMPORT_ALL = """
import importlib, importlib.abc, pkgutil, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
count = 0
for name in sys.argv[2].split(","):
    module = importlib.import_module(name)
    count += 1
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        if not found.name.endswith("__main__") and ".triton" not in found.name:
            importlib.import_module(found.name)
            count += 1
print(count)
"""

ABOVE_TORCH = (
    "protos",
    "shared",
    "router",
    "worker.scheduler",
    "worker.kvcache",
    "worker.plan",
    "worker.sequence",
    "worker.events",
)
ENGINE = ("worker.engine", "worker.execution", "worker.sampling", "worker.models", "worker.layers", "kernels")
EDGE_LIBRARIES = (
    "grpc",
    "grpc_health",
    "grpc_status",
    "gguf",
    "opentelemetry",
    "prometheus_client",
    "yaml",
    "uvloop",
    "fastapi",
)
ENGINE_LIBRARIES = {"torch", "triton", "safetensors", "transformers", "numpy"}
OWN = {"kernels", "shared", "worker"}


def _import_all(packages: Sequence[str], *, without: Sequence[str]) -> int:
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(without), ",".join(packages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_the_router_and_all_that_schedules_import_without_torch() -> None:
    assert _import_all(ABOVE_TORCH, without=["torch", "triton", "safetensors", "gguf", "transformers", "kernels"]) > 50


def test_the_engine_and_all_below_import_without_wire_or_telemetry() -> None:
    assert _import_all(ENGINE, without=EDGE_LIBRARIES) > 20


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _files(package: str) -> list[Path]:
    path = ROOT / package.replace(".", "/")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


@pytest.mark.parametrize(
    "package", [*ENGINE, "worker.scheduler", "worker.kvcache", "worker.plan", "worker.sequence", "worker.events"]
)
def test_the_engine_and_all_below_know_torch_and_its_companions_alone(package: str) -> None:
    allowed = ENGINE_LIBRARIES | OWN | sys.stdlib_module_names
    strangers = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _files(package)
        for name in _imported(path)
        if name not in allowed
    }
    assert not strangers


def test_no_file_is_named_for_nothing_in_particular() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
    roots = ("shared", "router", "worker", "kernels", "octavo", "tools", "tests")
    assert not [path for root in roots for path in (ROOT / root).rglob("*.py") if path.stem in vague]


def _needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Every distribution that installing `name` with `extras` brings here."""
    key = (canonicalize_name(name), extras)
    if key in seen:
        return set()
    seen.add(key)
    found = {canonicalize_name(name)}
    for line in metadata.requires(name) or ():
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found |= _needed(wanted.name, frozenset(wanted.extras), seen)
    return found


def test_nothing_that_the_router_needs_brings_torch() -> None:
    brought = _needed("octavo", frozenset({"router"}), set())
    assert {"grpcio", "fastapi", "tokenizers"} <= brought
    assert not {"torch", "triton", "numpy"} & brought
    assert "torch" in _needed("octavo", frozenset({"worker"}), set())


def test_kernels_is_ours_and_transformers_does_not_take_it_for_its_own() -> None:
    program = "import kernels, transformers.utils as u; print(kernels.__file__); print(u.is_kernels_available())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, timeout=100, check=True
    )  # away from the checkout, so that what is installed is found
    file, taken = done.stdout.split()
    assert file == str(ROOT / "kernels" / "__init__.py")
    assert taken == "False"
    assert Version(metadata.version("octavo")) < Version("0.5")
