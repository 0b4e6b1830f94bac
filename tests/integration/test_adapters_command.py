"""`octavo adapters` against a router's gRPC edge: what each action does, what is printed, and what an error looks like."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from octavo.cli.main import main
from tests.fakes.edges import GrpcEdge, grpc_edge
from tests.fakes.service import FakeService

DIGEST = b"/a".ljust(32).hex()


@pytest.fixture
async def edge() -> AsyncIterator[GrpcEdge]:
    async with grpc_edge(FakeService()) as running:
        yield running


async def run(edge: GrpcEdge, action: str, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["adapters", action, "--target", edge.address, *arguments])


async def test_each_action_is_done_and_told_in_a_table(edge: GrpcEdge, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(edge, "load", "acme/style", "/a", "--pin") == 0
    assert edge.service.adapters["acme/style"].pinned
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "NAME", "MODEL", "WORKER", "LEVEL", "VERSION", "RANK", "BYTES", "PINNED", "LOADED", "ERROR",
    ]  # fmt: skip
    assert one.split() == ["acme/style", "tiny", "w1", "host", DIGEST[:12], "8", "100"]
    assert two.split() == ["acme/style", "tiny", "w2", "absent", "it", "is", "away"]
    assert await run(edge, "unpin", "acme/style") == 0
    assert not edge.service.adapters["acme/style"].pinned
    assert await run(edge, "pin", "acme/style") == 0
    assert edge.service.adapters["acme/style"].pinned
    assert await run(edge, "unload", "acme/style") == 0
    assert not edge.service.adapters
    capsys.readouterr()
    assert await run(edge, "list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [head.split()]


async def test_as_json_nothing_is_left_out(edge: GrpcEdge, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(edge, "load", "style", "/a", "--model", "tiny", "--json") == 0
    loaded = json.loads(capsys.readouterr().out)
    assert (loaded["name"], loaded["digest"], loaded["source"], loaded["registered"]) == ("style", DIGEST, "/a", True)
    assert [(at["worker"], at["level"], at["error"]) for at in loaded["workers"]] == [
        ("w1", "host", ""),
        ("w2", "absent", "it is away"),
    ]
    assert await run(edge, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [loaded]
    assert await run(edge, "unload", "style", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"name": "style", "unloaded": True}


async def test_what_the_router_refuses_is_one_line_and_a_status(
    edge: GrpcEdge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(edge, "load", "style", "/a") == 0
    assert await run(edge, "load", "style", "/b") == 1
    said = capsys.readouterr().err
    assert said.startswith("octavo: adapter 'style' is loaded with another version: `replace` would")
    assert said.count("\n") == 1
    assert await run(edge, "load", "style", "/b", "--replace") == 0
    assert await run(edge, "unload", "nobody") == 1
    assert await run(edge, "pin", "nobody") == 1


def test_a_router_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters", "list", "--target", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("octavo: 127.0.0.1:1: the router cannot be reached")
    assert "gRPC address" in said


async def test_at_the_public_address_operators_commands_say_which_is_meant(
    edge: GrpcEdge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, ["worker", "list", "--target", edge.address]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"octavo: {edge.address}: what listens there does not serve this call")
    assert "--admin-grpc-listen" in said
