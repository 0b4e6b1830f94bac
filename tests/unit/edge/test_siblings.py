"""Metrics of several processes as one."""

import asyncio
import json
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.exposition import Alone
from router.processes.siblings import Member, Merged, Siblings, told


def registry(served: int) -> CollectorRegistry:
    """One of each kind."""
    made = CollectorRegistry()
    Counter("served", "Requests", ("model",), registry=made).labels("tiny").inc(served)
    Gauge("room", "Places", registry=made).set(served)
    Histogram("ttft_seconds", "Time", registry=made, buckets=(1, 2)).observe(1.5)
    return made


def named() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("asked", "By tenant", ("tenant",), registry=made).labels("acme").inc()
    return made


def test_each_family_stands_there_once_with_every_process_samples() -> None:
    families = [json.loads(json.dumps(told(registry(served), number))) for number, served in ((1, 3), (2, 4))]
    text = generate_latest(Merged(families)).decode()
    assert text.count("# TYPE served_total counter") == text.count("# TYPE ttft_seconds histogram") == 1
    for line in (
        'served_total{model="tiny",process="1"} 3.0',
        'served_total{model="tiny",process="2"} 4.0',
        'room{process="2"} 4.0',
        'ttft_seconds_bucket{le="2.0",process="1"} 1.0',
        'ttft_seconds_bucket{le="+Inf",process="2"} 1.0',
    ):
        assert line in text, line


async def test_any_process_tells_of_all_that_live_and_of_tenants_only_where_they_may_be_seen(tmp_path: Path) -> None:
    siblings = [
        Siblings(Member(number=number, directory=tmp_path), Alone(registry(number), named())) for number in (1, 2, 3)
    ]

    async def shown(tenants: bool) -> str:
        return generate_latest(await siblings[0].shown(tenants)).decode()

    async with siblings[0].listening(), siblings[1].listening():
        async with siblings[2].listening():
            text = await shown(False)
            assert all(f'room{{process="{number}"}} {number}.0' in text for number in (1, 2, 3))
            assert "acme" not in text
            assert (await shown(True)).count("asked_total{process=") == 3
        assert 'process="3"' not in await shown(False), "it does not answer any more"
        assert 'process="2"' in await shown(False)


async def test_a_process_that_hangs_or_talks_nonsense_is_left_out(tmp_path: Path) -> None:
    own = Siblings(Member(number=1, directory=tmp_path), Alone(registry(1), named()))

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"{")
        writer.close()

    hangs = await asyncio.start_unix_server(silent, tmp_path / "2.sock")
    talks = await asyncio.start_unix_server(nonsense, tmp_path / "3.sock")
    async with hangs, talks:
        assert 'room{process="1"} 1.0' in generate_latest(await own.shown(False)).decode()


def test_a_process_knows_when_all_have_been_up(tmp_path: Path) -> None:
    member = Member(number=1, directory=tmp_path)
    assert not member.all_up()
    (tmp_path / "up").touch()
    assert member.all_up()
