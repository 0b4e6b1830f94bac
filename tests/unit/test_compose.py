"""The compose file and the images' recipes, checked as text: what runs them is checked by `make soak`."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tests.conftest import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
DOCKERFILES = [ROOT / "Dockerfile.router", ROOT / "Dockerfile.worker"]


def _final_stage(path: Path) -> str:
    return path.read_text().rpartition("\nFROM ")[2]


def test_the_compose_file_is_valid() -> None:
    # Engines resolve merge keys and variables before they read the file; the validator leaves both to its caller.
    resolved = yaml.safe_dump(yaml.safe_load(re.sub(r"\$\{\w+:-(\w+)\}", r"\1", TEXT)))
    assert "$" not in resolved
    assert set(PyCompose.from_yaml(resolved).service_names()) == set(SERVICES)


def test_the_validator_refuses_a_key_that_compose_does_not_know() -> None:
    with pytest.raises(ValueError, match="commnad"):
        PyCompose.from_yaml("services: {router: {image: router, commnad: [--help]}}")


def test_the_stack_is_a_router_two_workers_and_what_pulls_their_model() -> None:
    assert set(SERVICES) == {"model", "router", "worker-1", "worker-2"}
    assert SERVICES["router"]["command"] == ["--workers", "worker-1:50061,worker-2:50061", "--allow-open"]
    assert {mount for name in ("model", "worker-1", "worker-2") for mount in SERVICES[name]["volumes"]} == {
        "models:/models"
    }


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["mem_limit"]


def test_only_the_router_is_published_and_on_loopback_alone() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["router"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["router"]["ports"])


@pytest.mark.parametrize("name", ["router", "worker-1", "worker-2"])
def test_what_serves_is_restarted_and_watched(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"][:3] == ["CMD", "python", "-m"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_an_image_runs_one_command_as_nobody_in_particular_and_says_its_health(path: Path) -> None:
    stage = _final_stage(path)
    assert "\nUSER 10001:10001\n" in stage
    assert '\nENTRYPOINT ["octavo-' in stage
    assert "\nSTOPSIGNAL SIGTERM\n" in stage
    assert "HEALTHCHECK" in stage


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_an_image_is_built_from_the_pins_on_a_base_that_can_be_chosen(path: Path) -> None:
    text = path.read_text()
    assert text.count("FROM ${BASE}") == 2
    assert "-c constraints.txt" in text


def test_a_build_sees_nothing_that_is_not_installed() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert {line for line in lines if line.startswith("!")} == {
        "!pyproject.toml", "!constraints.txt", "!LICENSE", "!protos", "!shared", "!router", "!worker", "!kernels", "!octavo",
    }  # fmt: skip
