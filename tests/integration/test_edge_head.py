"""HEAD over a real connection: what GET answers, without the body; and the front page."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.fakes.edges import HttpEdge, http_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import FakeService

DIFFERS = {"date", "x-request-id"}


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


def told(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in DIFFERS}


PATHS = [
    "/",
    "/health",
    "/ready",
    "/version",
    "/docs",
    "/openapi.json",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/models/absent",
    "/v1/adapters",
    "/v1/completions",  # takes no GET either
    "/absent",
]


@pytest.mark.parametrize("path", PATHS)
async def test_head_tells_what_get_would(path: str, edge: HttpEdge) -> None:
    got, head = await edge.http.get(path), await edge.http.head(path)
    assert (head.status_code, told(head)) == (got.status_code, told(got))
    assert int(head.headers["content-length"]) == len(got.content)
    assert head.content == b""


async def test_a_connection_goes_on_after_a_head(edge: HttpEdge) -> None:
    """A body that came nevertheless would be read as the next answer's beginning."""
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=edge.url, timeout=20, limits=limits) as client:
        answers = [await client.request(method, "/v1/models") for method in ("HEAD", "GET", "HEAD", "GET")]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [bool(answer.content) for answer in answers] == [False, True, False, True]


async def test_head_is_no_method_of_what_takes_no_get(edge: HttpEdge) -> None:
    answer = await edge.http.head("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_what_is_refused_of_a_head_is_told_as_one(edge: HttpEdge, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="octavo.access"):
        await edge.http.head("/absent")
        await until(lambda: caplog.records, "the line")
    assert "HEAD '/absent'" in caplog.records[0].getMessage()


async def test_the_front_page_names_the_service_and_where_it_is_described(edge: HttpEdge) -> None:
    told = (await edge.http.get("/")).json()
    assert told == {"service": "octavo", "version": "1.2.3", "docs": "/docs", "openapi": "/openapi.json"}
    for path in (told["docs"], told["openapi"]):
        assert (await edge.http.get(path)).status_code == 200
