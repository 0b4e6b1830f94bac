"""Adapters as metrics: every one is counted, and those that have a series of their own are bounded."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge

from shared.types import AdapterInfo, AdapterLevel
from worker import adaptermetrics
from worker.adaptermetrics import AdapterMetrics

SOURCE, HOST, DEVICE = AdapterLevel.SOURCE, AdapterLevel.HOST, AdapterLevel.DEVICE


class Scraped:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, *labels: str) -> Gauge:
            return Gauge(name, name, labels, registry=self.registry)

        self.metrics = AdapterMetrics(gauge("adapter", "adapter", "level"), gauge("adapters", "level"), gauge("host"))

    def tell(self, **levels: AdapterLevel | None) -> None:
        infos = {name: level and AdapterInfo(name=name, level=level) for name, level in levels.items()}
        self.metrics.tell(infos, 7)

    def named(self) -> dict[str, str]:
        samples = [one for family in self.registry.collect() for one in family.samples if one.name == "adapter"]
        assert all(one.value == 1 for one in samples)
        return {one.labels["adapter"]: one.labels["level"] for one in samples}

    def count(self, level: AdapterLevel) -> float:
        value = self.registry.get_sample_value("adapters", {"level": level.value})
        assert value is not None
        return value


def test_each_adapter_has_one_series_idle_ones_included_and_none_when_it_is_gone() -> None:
    scraped = Scraped()
    scraped.tell(idle=SOURCE, warm=HOST, hot=DEVICE)
    assert scraped.named() == {"idle": "source", "warm": "host", "hot": "device"}
    scraped.tell(warm=DEVICE, hot=None)
    assert scraped.named() == {"idle": "source", "warm": "device"}
    assert [scraped.count(level) for level in (SOURCE, HOST, DEVICE)] == [1, 0, 1]
    assert scraped.registry.get_sample_value("host") == 7


def test_where_they_are_too_many_those_in_memory_have_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptermetrics, "MOST_NAMED", 3)
    scraped = Scraped()
    scraped.tell(**{f"a{number}": SOURCE for number in range(5)})
    assert set(scraped.named()) == {"a0", "a1", "a2"}
    scraped.tell(a4=DEVICE, a3=HOST)
    assert scraped.named() == {"a2": "source", "a4": "device", "a3": "host"}
    assert [scraped.count(level) for level in (SOURCE, HOST, DEVICE)] == [3, 1, 1]


CHANGES = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([None, SOURCE, HOST, DEVICE])), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(CHANGES, st.integers(1, 6))
def test_series_are_bounded_and_true_and_counts_are_of_all(changes: list[dict[str, Any]], most: int) -> None:
    scraped, now = Scraped(), dict[str, AdapterLevel]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptermetrics, "MOST_NAMED", most)
        for levels in changes:
            scraped.tell(**levels)
            now = {name: level for name, level in (now | levels).items() if level is not None}
            named = scraped.named()
            assert len(named) <= most
            assert all(now[name].value == level for name, level in named.items())
            assert {level: scraped.count(level) for level in AdapterLevel} == {
                level: sum(at is level for at in now.values()) for level in AdapterLevel
            }
