"""YAML documents of tenants, and what is exported."""

import csv
import io
import json

import pytest

from router.tenancy import export
from router.tenancy.document import document_of, tenant_from, tenants_from_yaml
from router.tenancy.records import Charge, Limits, TenantRecord
from router.tenancy.store import UsageLine, UsageTotal
from shared.errors import InvalidRequest

WHOLE = """
tenants:
  - name: acme
    weight: 2.5
    top_class: 1
    limits: {requests_per_minute: 60, max_n: 4}
    models: ["llama-*", "tiny"]
    adapters: []
    cache_scope: team
    labels: {plan: gold}
  - name: other
"""


def test_a_document_says_what_it_says_and_defaults_for_the_rest() -> None:
    acme, other = tenants_from_yaml(WHOLE)
    assert acme == TenantRecord(
        name="acme",
        weight=2.5,
        top_class=1,
        limits=Limits(requests_per_minute=60, max_n=4),
        models=("llama-*", "tiny"),
        adapters=(),
        cache_scope="team",
        labels={"plan": "gold"},
    )
    assert other == TenantRecord(name="other")


def test_a_tenant_is_written_as_it_is_read() -> None:
    for tenant in tenants_from_yaml(WHOLE):
        assert tenant_from(document_of(tenant)) == tenant


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("tenants: [{name: a}, {name: a}]", "tenants"),
        ("tenants: [{name: A}]", "tenants[0].name"),
        ("tenants: [{name: 7}]", "tenants[0].name"),
        ("tenants: [{weight: 1}]", "tenants[0].name"),
        ("tenants: [{name: a, wait: 1}]", "tenants[0]"),
        ("tenants: [{name: a, uid: x}]", "tenants[0]"),
        ("tenants: [{name: a, weight: 0}]", "tenants[0].weight"),
        ("tenants: [{name: a, weight: .nan}]", "tenants[0].weight"),
        ("tenants: [{name: a, weight: heavy}]", "tenants[0].weight"),
        ("tenants: [{name: a, weight: true}]", "tenants[0].weight"),
        (f"tenants: [{{name: a, weight: {'9' * 400}}}]", "tenants[0].weight"),
        ("tenants: [{name: a, top_class: 8}]", "tenants[0].top_class"),
        ("tenants: [{name: a, top_class: true}]", "tenants[0].top_class"),
        ("tenants: [{name: a, top_class: 1.0}]", "tenants[0].top_class"),
        ("tenants: [{name: a, limits: 0}]", "tenants[0].limits"),
        ("tenants: [{name: a, limits: false}]", "tenants[0].limits"),
        ("tenants: [{name: a, limits: ''}]", "tenants[0].limits"),
        ("tenants: [{name: a, limits: []}]", "tenants[0].limits"),
        (f"tenants: [{{name: a, limits: {{max_n: {'9' * 400}}}}}]", "tenants[0].limits.max_n"),
        ("tenants: [{name: a, labels: 0}]", "tenants[0].labels"),
        ("tenants: [{name: a, labels: []}]", "tenants[0].labels"),
        ("tenants: [{name: a, labels: {? [b] : c}}]", None),
        ("tenants: [{name: a, name: b}]", None),
        ("tenants: [{name: a, limits: {max_n: 1}, 'limits': {max_context: 9}}]", None),
        ("{tenants: [], tenants: [{name: a}]}", None),
        ("tenants: [{name: a, limits: {requests_per_minute: 0}}]", "tenants[0].limits.requests_per_minute"),
        ("tenants: [{name: a, limits: {requests_per_minute: 1.5}}]", "tenants[0].limits.requests_per_minute"),
        ("tenants: [{name: a, limits: {requests_per_minute: true}}]", "tenants[0].limits.requests_per_minute"),
        ("tenants: [{name: a, limits: {rpm: 1}}]", "tenants[0].limits"),
        ("tenants: [{name: a, models: tiny}]", "tenants[0].models"),
        ("tenants: [{name: a, models: [1]}]", "tenants[0].models"),
        ("tenants: [{name: a, models: ['']}]", "tenants[0].models"),
        ("tenants: [{name: a, labels: {x: 1}}]", "tenants[0].labels"),
        ("tenants: [{name: a, cache_scope: 1}]", "tenants[0].cache_scope"),
        ("tenants: {name: a}", "tenants"),
        ("tenants: [a]", "tenants[0]"),
        ("users: []", "document"),
        ("[]", "document"),
        ("tenants: [", None),
        ("!!python/object/apply:os.system [id]", None),
    ],
)
def test_what_is_wrong_is_named(text: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tenants_from_yaml(text)
    assert caught.value.param == param


def _charge(key: str) -> Charge:
    return Charge(
        id="1", tenant="acme", key=key, model="tiny", adapter="", prompt_tokens=3, cached_tokens=1, output_tokens=2,
        finish="stop", worker="w1", started=1.5, time=2.5,
    )  # fmt: skip


def test_lines_are_told_as_csv_and_as_json() -> None:
    found = [UsageLine(number=1, charge=_charge("main"))]
    (row,) = csv.DictReader(io.StringIO(export.lines(found, "csv")))
    assert (row["tenant"], row["prompt_tokens"], row["time"]) == ("acme", "3", "2.5")
    (told,) = json.loads(export.lines(found, "json"))
    assert (told["key"], told["cached_tokens"], told["finish"]) == ("main", 1, "stop")


def test_totals_are_told_as_csv_and_as_json() -> None:
    total = UsageTotal(
        tenant="acme",
        key="main",
        model="tiny",
        adapter="",
        requests=2,
        prompt_tokens=6,
        cached_tokens=2,
        output_tokens=4,
    )
    (row,) = csv.DictReader(io.StringIO(export.totals([total], "csv")))
    assert (row["requests"], row["output_tokens"]) == ("2", "4")
    assert json.loads(export.totals([total], "json"))[0]["prompt_tokens"] == 6


def test_a_name_is_no_formula_of_a_spreadsheet() -> None:
    found = [UsageLine(number=1, charge=_charge("=cmd()"))]
    (row,) = csv.DictReader(io.StringIO(export.lines(found, "csv")))
    assert row["key"] == "'=cmd()"


@pytest.mark.parametrize(
    "text", ["tenants: " + "9" * 5000, "[" * 5000, "tenants: 2026-13-45"], ids=["digits", "depth", "date"]
)
def test_what_yaml_cannot_make_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not YAML"):
        tenants_from_yaml(text)


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("name: HALF", "name"),
        ("name: x, cache_scope: HALF", "cache_scope"),
        ("name: x, models: [HALF]", "models"),
        ("name: x, adapters: ['*', HALF]", "adapters"),
        ("name: x, labels: {a: HALF}", "labels"),
        ("name: x, labels: {HALF: a}", "labels"),
    ],
)
@pytest.mark.parametrize("half", ["\\ud800", "\\udfff", "a\\udc80b"])
def test_text_that_utf8_cannot_write_is_refused_wherever_it_stands(field: str, param: str, half: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tenants_from_yaml(f"tenants: [{{{field}}}]".replace("HALF", f'"{half}"'))
    assert caught.value.param == f"tenants[0].{param}"
    caught.value.message.encode()


@pytest.mark.parametrize("half", ["\\0", "\\x1b[2J", "a\\n", "\\x7f", "\\u202e", "\u0430cme", "a b"])
@pytest.mark.parametrize("field", ["name: HALF", "name: x, cache_scope: HALF", "name: x, models: [HALF]"])
def test_no_name_or_pattern_has_what_cannot_be_seen_or_looks_like_another(field: str, half: str) -> None:
    with pytest.raises(InvalidRequest):
        tenants_from_yaml(f"tenants: [{{{field}}}]".replace("HALF", f'"{half}"'))


def test_nothing_at_all_is_the_default_and_what_a_merge_brings_may_be_overridden() -> None:
    text = """
tenants:
  - &base {name: a, limits: &some {max_n: 1}, labels:}
  - &also {<<: *base, name: b, limits:}
  - {<<: [*also, *base], name: c, limits: {<<: *some, max_n: 3}}
"""
    a, b, c = tenants_from_yaml(text)
    assert (a.limits.max_n, b.limits, c.limits.max_n) == (1, Limits(), 3)
    assert (a.labels, c.name) == ({}, "c")
