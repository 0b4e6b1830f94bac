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
        ("tenants: [{name: a, top_class: 8}]", "tenants[0].top_class"),
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


def test_labels_that_utf8_cannot_write_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tenants_from_yaml('tenants: [{name: x, labels: {a: "\\ud800"}}]')
