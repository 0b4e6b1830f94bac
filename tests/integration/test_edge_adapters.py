"""Loading and unloading adapters over HTTP, as vLLM's clients send it: who may, and how refusals are told."""

import httpx
import pytest
from prometheus_client import CollectorRegistry

from router.edge.gate import Gate
from router.edge.http.app import make_app
from router.tenancy.caller import OPEN_CALLER
from shared.errors import ModelNotFound
from tests.fakes.edges import MAX_BODY, HttpEdge, http_edge
from tests.fakes.service import FakeService

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def edge():
    async with http_edge(FakeService()) as running:
        yield running


async def test_vllms_bodies_load_and_unload(edge: HttpEdge) -> None:
    assert (await edge.http.post(LOAD, json={"lora_name": "a", "lora_path": "/some/where"})).status_code == 200
    assert list(edge.service.adapters) == ["a"]
    assert (await edge.http.post(UNLOAD, json={"lora_name": "a", "lora_int_id": 1})).status_code == 200
    assert not edge.service.adapters


async def test_an_unknown_name_is_404_in_openais_shape_and_vllms_field(edge: HttpEdge) -> None:
    answer = await edge.http.post(UNLOAD, json={"lora_name": "a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "lora_name")


async def test_a_name_that_is_taken_is_told_how_it_would_be_replaced(edge: HttpEdge) -> None:
    await edge.http.post(LOAD, json={"lora_name": "a", "lora_path": "/some/where"})
    error = (await edge.http.post(LOAD, json={"lora_name": "a", "lora_path": "/else/where"})).json()["error"]
    assert (error["code"], error["param"]) == ("already_exists", "lora_name")
    assert "`load_inplace`" in error["message"]
    body = {"lora_name": "a", "lora_path": "/else/where", "load_inplace": True}
    assert (await edge.http.post(LOAD, json=body)).status_code == 200


async def test_an_unknown_base_is_blamed_on_the_field_that_names_it(
    edge: HttpEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(*_: object, model: str, **__: object) -> None:
        raise ModelNotFound(f"the model {model!r} does not exist", param="model")

    monkeypatch.setattr(type(edge.service.operator), "load", load)
    answer = await edge.http.post(LOAD, json={"lora_name": "a", "base_model_name": "other"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "base_model_name")


@pytest.mark.parametrize("body", [{}, {"lora_name": ""}, {"lora_name": 3}, {"lora_name": "x" * 257}])
async def test_a_name_that_is_none_is_refused(edge: HttpEdge, body: dict[str, object]) -> None:
    for path in (LOAD, UNLOAD):
        answer = await edge.http.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_name")


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("::1", 200), ("10.1.2.3", 403), ("", 403)])
async def test_without_keys_only_this_machine_changes_adapters(host: str, status: int) -> None:
    service = FakeService()
    app = make_app(Gate(service), CollectorRegistry(), version="1.2.3", max_body_bytes=MAX_BODY)
    transport = httpx.ASGITransport(app, client=(host, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        assert (await client.post(LOAD, json={"lora_name": "a"})).status_code == status
        await service.operator.load(OPEN_CALLER, "a", "", replace=True)
        assert (await client.post(UNLOAD, json={"lora_name": "a"})).status_code == status
