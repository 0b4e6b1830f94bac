"""The server's own endpoints, and what every answer carries."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from router.edge.gate import Gate
from router.edge.http.app import make_app
from tests.fakes.edges import HttpEdge, http_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import FakeService


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


async def test_health_is_alive_whatever_the_workers_do(edge: HttpEdge) -> None:
    edge.service.is_ready = False
    assert (await edge.http.get("/health")).status_code == 200


async def test_ready_follows_the_service_and_the_gate(edge: HttpEdge) -> None:
    assert (await edge.http.get("/ready")).status_code == 200
    edge.service.is_ready = False
    assert (await edge.http.get("/ready")).status_code == 503
    edge.service.is_ready = True
    edge.gate.close()
    assert (await edge.http.get("/ready")).status_code == 503


async def test_a_shut_gate_refuses_new_work_and_finishes_the_old(edge: HttpEdge) -> None:
    edge.service.hold_at = 1
    running = asyncio.create_task(edge.http.post("/v1/completions", json={"prompt": "a"}))
    await until(lambda: edge.service.generations)
    edge.gate.close()
    refused = await edge.http.post("/v1/completions", json={"prompt": "a"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    edge.service.generations[0].release.set()
    assert (await running).status_code == 200
    async with asyncio.timeout(10):
        await edge.gate.idle()


async def test_version_is_told(edge: HttpEdge) -> None:
    assert (await edge.http.get("/version")).json() == {"version": "1.2.3"}


async def test_metrics_are_the_registrys_in_the_form_asked_for() -> None:
    registry = CollectorRegistry()
    Counter("octavo_things", "Things.", registry=registry).inc(3)
    app = make_app(Gate(FakeService()), registry, version="1", max_body_bytes=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        plain = await client.get("/metrics")
        assert "octavo_things_total 3.0" in plain.text
        assert plain.headers["content-type"].startswith("text/plain")
        asked = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert asked.headers["content-type"].startswith("application/openmetrics-text")


async def test_request_ids_are_kept_where_they_are_safe_and_made_where_not(edge: HttpEdge) -> None:
    kept = await edge.http.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "my-id_1"})
    assert kept.headers["x-request-id"] == "my-id_1"
    assert edge.service.requests[0].request_id == "my-id_1"
    for bad in ("a b", "x" * 257, "é"):
        made = await edge.http.get("/health", headers={"x-request-id": bad.encode()})
        assert len(made.headers["x-request-id"]) == 32
    assert (await edge.http.get("/absent")).headers["x-request-id"]


async def test_every_request_leaves_one_line_without_its_prompt(
    edge: HttpEdge, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="octavo.access"):
        await edge.http.post("/v1/completions", json={"prompt": "secret words"}, headers={"x-request-id": "r1"})
        await edge.http.get("/absent%1b[31m")
        await edge.http.get("/ready")
    lines = [record.getMessage() for record in caplog.records if record.name == "octavo.access"]
    assert len(lines) == 2
    assert "/v1/completions" in lines[0]
    assert "status=200" in lines[0]
    assert "id='r1'" in lines[0]
    assert "status=404" in lines[1]
    assert not any("secret" in line or "\x1b" in line for line in lines)


async def test_the_schema_describes_bodies_answers_and_errors(edge: HttpEdge) -> None:
    schema = (await edge.http.get("/openapi.json")).json()
    post = schema["paths"]["/v1/chat/completions"]["post"]
    body = schema["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "temperature", "top_k", "min_p", "stop_token_ids", "max_completion_tokens"} <= set(body)
    assert set(post["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"400", "404", "413", "415", "429", "503", "504"} <= set(post["responses"])
    assert "422" not in post["responses"]
    assert "ErrorBody" in schema["components"]["schemas"]


async def test_the_reference_names_every_route_and_field_and_loads_nothing(edge: HttpEdge) -> None:
    schema = (await edge.http.get("/openapi.json")).json()
    docs = await edge.http.get("/docs")
    assert docs.headers["content-type"].startswith("text/html")
    assert docs.headers["content-security-policy"].startswith("default-src 'none'")
    fields = schema["components"]["schemas"]["ChatBody"]["properties"]
    assert all(name in docs.text for name in (*schema["paths"], *fields))
    assert not re.search(r"<script|<link|src=|https?://", docs.text)
