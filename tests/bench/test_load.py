"""The load generator against the real HTTP edge."""

from dataclasses import replace

import pytest

from octavo.bench import load, serving
from octavo.bench.workload import Item, Workload
from router.request import GenerateRequest
from shared.errors import Internal, Unavailable
from tests.fakes.edges import http_edge
from tests.fakes.service import FakeService, Flush, words

MIX = Workload(name="by hand", items=(Item(prompt=(1, 2, 3), output_tokens=4), Item(prompt=(9,), output_tokens=2)))


async def test_every_request_of_a_workload_is_sent_once_and_counted() -> None:
    service = FakeService()
    async with http_edge(service) as edge, load.session(edge.url) as client:
        outcome = await load.run(client, MIX.first(10), "tiny", concurrency=4)
    assert outcome.errors == ()
    assert sorted(t.output_tokens for t in outcome.timelines) == [2] * 5 + [4] * 5
    assert sorted(t.prompt_tokens for t in outcome.timelines) == [1] * 5 + [3] * 5
    for timeline in outcome.timelines:
        assert timeline.start < timeline.pieces[0] <= timeline.pieces[-1] <= timeline.end
        assert len(timeline.pieces) <= timeline.output_tokens
    sampling = service.requests[0].sampling
    assert (sampling.temperature, sampling.ignore_eos, sampling.max_tokens) == (0, True, 4)


async def test_a_stream_that_breaks_counts_as_failed_and_not_as_answered() -> None:
    service = FakeService(fail_at=1, failure=Unavailable("the worker is gone"))
    async with http_edge(service) as edge, load.session(edge.url) as client:
        outcome = await load.run(client, MIX, "tiny", concurrency=1)
    assert outcome.timelines == ()
    assert outcome.errors == ("the worker is gone",) * 2


async def test_a_refused_request_counts_as_failed() -> None:
    async with http_edge(FakeService(refuse=Unavailable("full"))) as edge, load.session(edge.url) as client:
        outcome = await load.run(client, MIX, "tiny", concurrency=2)
    assert len(outcome.errors) == 2
    assert all("HTTP 503" in error for error in outcome.errors)


async def test_a_report_holds_a_run_for_each_concurrency_and_where_it_was_made() -> None:
    said: list[str] = []
    async with http_edge(FakeService()) as edge:
        report = await serving.measure(
            edge.url, MIX, model=None, concurrencies=(1, 3), requests=6, progress=said.append
        )
    assert report["model"] == "tiny"
    assert [(run["concurrency"], run["completed"], run["failed"]) for run in report["runs"]] == [(1, 6, 0), (3, 6, 0)]
    assert {"commit", "machine", "versions", "workload"} < set(report)
    assert report["machine"]["cores"] >= 1
    assert len(said) == 2


async def test_a_run_that_answers_nothing_is_an_error_not_a_figure() -> None:
    count = 0

    def once(request: GenerateRequest) -> list[Flush]:
        nonlocal count
        count += 1
        if count > 1:
            raise Unavailable("gone")
        return words(request)

    async with http_edge(FakeService(script=once)) as edge:
        with pytest.raises(Internal, match="gone"):
            await serving.measure(
                edge.url, replace(MIX), model="tiny", concurrencies=(2,), requests=4, progress=lambda line: None
            )
