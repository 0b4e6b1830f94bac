"""Adapters listed, loaded, pinned and unloaded over HTTP and over gRPC, as the operator behind the gate does it."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest

from protos import adapters_pb2 as pb
from protos import adapters_pb2_grpc as pb_grpc
from router.edge.local import host_of_peer, is_loopback, require_local
from router.tenancy.caller import OPEN_CALLER, Caller
from shared import rpc
from shared.errors import PermissionDenied
from shared.types import Tenant
from tests.fakes.edges import HttpEdge, grpc_edge, http_edge
from tests.fakes.service import FakeService

ALL = "/v1/adapters"


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    async with grpc_edge(FakeService()) as running, rpc.channel(running.address) as channel:
        yield pb_grpc.AdaptersStub(channel)


async def test_over_http_a_name_is_loaded_listed_pinned_and_unloaded(edge: HttpEdge) -> None:
    body = {"name": "acme/style", "source": "/some/where", "model": "tiny"}
    loaded = await edge.http.post(ALL, json=body)
    assert loaded.status_code == 200
    assert loaded.json() == {
        "id": "acme/style",
        "object": "adapter",
        "parent": "tiny",
        "digest": b"/some/where".ljust(32).hex(),
        "rank": 8,
        "bytes": 100,
        "pinned": False,
        "loaded": 1_700_000_000,
        "registered": True,
        "source": "/some/where",
        "workers": [
            {
                "worker": "w1",
                "level": "host",
                "digest": b"/some/where".ljust(32).hex(),
                "bytes": 100,
                "pinned": False,
                "loaded": 0,
                "error": "",
            },
            {
                "worker": "w2",
                "level": "absent",
                "digest": "",
                "bytes": 0,
                "pinned": False,
                "loaded": 0,
                "error": "it is away",
            },
        ],
    }
    pinned = await edge.http.patch(f"{ALL}/acme/style", json={"pinned": True})
    assert pinned.json() == {**loaded.json(), "pinned": True}
    assert (await edge.http.get(ALL)).json() == {"object": "list", "data": [pinned.json()]}
    assert (await edge.http.get(f"{ALL}/acme/style")).json() == pinned.json()
    gone = await edge.http.delete(f"{ALL}/acme/style")
    assert gone.json() == {"id": "acme/style", "object": "adapter", "deleted": True}
    assert (await edge.http.get(ALL)).json()["data"] == []


async def test_over_http_what_cannot_be_is_told_by_its_status(edge: HttpEdge) -> None:
    def fault(answer: httpx.Response) -> tuple[int, Any, Any]:
        error = answer.json()["error"]
        return answer.status_code, error["param"], error["code"]

    await edge.http.post(ALL, json={"name": "a"})
    assert fault(await edge.http.post(ALL, json={"name": "a"})) == (409, "name", "already_exists")
    assert (await edge.http.post(ALL, json={"name": "a", "replace": True, "pin": True})).json()["pinned"]
    assert fault(await edge.http.post(ALL, json={"name": ""}))[:2] == (400, "name")
    assert fault(await edge.http.post(ALL, json={"name": "a", "pin": "yes"}))[:2] == (400, "pin")
    assert fault(await edge.http.patch(f"{ALL}/a", json={}))[:2] == (400, "pinned")
    assert fault(await edge.http.patch(f"{ALL}/b", json={"pinned": True})) == (404, "name", "model_not_found")
    assert fault(await edge.http.delete(f"{ALL}/b")) == (404, "name", "model_not_found")
    assert fault(await edge.http.get(f"{ALL}/b")) == (404, "name", "model_not_found")
    assert fault(await edge.http.get(f"{ALL}/{'b' * 300}"))[:2] == (400, "name")
    assert fault(await edge.http.delete(f"{ALL}/{'b' * 300}"))[:2] == (400, "name")


async def test_over_grpc_a_name_is_loaded_listed_pinned_and_unloaded(stub: Any) -> None:
    loaded = await stub.Load(pb.AdaptersLoadRequest(name="acme/style", source="/a"))
    assert (loaded.name, loaded.model, loaded.digest, loaded.rank) == ("acme/style", "tiny", b"/a".ljust(32), 8)
    levels = [(at.worker_id, at.level, at.error) for at in loaded.workers]
    assert levels == [("w1", pb.ADAPTER_RESIDENCE_HOST, ""), ("w2", pb.ADAPTER_RESIDENCE_ABSENT, "it is away")]
    assert (await stub.Pin(pb.AdaptersPinRequest(name="acme/style", pinned=True))).pinned
    assert [one.pinned for one in (await stub.List(pb.AdaptersListRequest())).adapters] == [True]
    assert (await stub.Unload(pb.AdaptersUnloadRequest(name="acme/style"))).name == "acme/style"
    assert not (await stub.List(pb.AdaptersListRequest())).adapters


async def test_over_grpc_what_cannot_be_is_told_by_its_status(stub: Any) -> None:
    await stub.Load(pb.AdaptersLoadRequest(name="a"))
    for call, code in (
        (stub.Load(pb.AdaptersLoadRequest(name="a")), grpc.StatusCode.ALREADY_EXISTS),
        (stub.Load(pb.AdaptersLoadRequest(name="")), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.Load(pb.AdaptersLoadRequest(name="b", source="s" * 5_000)), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.Unload(pb.AdaptersUnloadRequest(name="b")), grpc.StatusCode.NOT_FOUND),
        (stub.Pin(pb.AdaptersPinRequest(name="b")), grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is code
        assert rpc.is_rich(caught.value)


async def test_over_grpc_bytes_that_are_no_message_are_the_callers_fault() -> None:
    async with grpc_edge(FakeService()) as running, rpc.channel(running.address) as channel:
        call = channel.unary_unary("/octavo.v1.Adapters/Load")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv4:127.9.0.1:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv6:[::1]:5000", True),
        ("ipv4:10.0.0.1:5000", False),
        ("ipv6:%5Bfe80::1%5D:5000", False),
        ("unix:/tmp/socket", False),
        ("", False),
    ],
)
def test_without_keys_only_this_machine_is_let_in(peer: str, local: bool) -> None:
    assert is_loopback(host_of_peer(peer)) is local
    keyed = Caller(tenant=Tenant(id="acme"))
    assert require_local(keyed, host_of_peer(peer)) is keyed
    if not local:
        with pytest.raises(PermissionDenied):
            require_local(OPEN_CALLER, host_of_peer(peer))
