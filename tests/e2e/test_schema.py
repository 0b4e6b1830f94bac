"""Requests generated from /openapi.json, right and wrong ones, against a whole stack: no server error, and answers as the schema says."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.stack import RunningStack

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = 2  # tokens and choices of a request that is right: what is under test is what the edge makes of it
WITH_BODIES = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/adapters",
    "PATCH /v1/adapters/{name}",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
)
OTHERS = (
    *("GET /v1/models", "GET /v1/models/{model_id}", "GET /v1/adapters"),
    *(
        "GET /v1/adapters/{name}",
        "DELETE /v1/adapters/{name}",
        "GET /",
        "GET /health",
        "GET /ready",
        "GET /version",
        "GET /metrics",
    ),
)


@pytest.fixture(scope="module")
def schema(stack: RunningStack) -> Any:
    return schemathesis.openapi.from_url(f"http://{stack.http}/openapi.json")


def _short(body: Any) -> None:
    """Keeps what would be served from taking long."""
    if not isinstance(body, dict):
        return
    body.setdefault("max_tokens", FEW)
    for name in ("max_tokens", "max_completion_tokens", "n", "best_of"):
        value = body.get(name)
        if isinstance(value, int) and value > FEW:
            body[name] = FEW


def test_every_route_is_in_the_schema(schema: Any) -> None:
    found = {result.ok().label for result in schema.get_all_operations()}
    assert found == {*WITH_BODIES, *OTHERS}


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, mode) for label in WITH_BODIES for mode in GenerationMode),
        *((o, GenerationMode.POSITIVE) for o in OTHERS),
    ],
    ids=lambda value: value.value if isinstance(value, GenerationMode) else value,
)
def test_no_generated_request_makes_a_server_error(schema: Any, label: str, mode: GenerationMode) -> None:
    operation = next(r.ok() for r in schema.get_all_operations() if r.ok().label == label)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=60 if label in WITH_BODIES else 5,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        _short(case.body)
        case.call_and_validate(checks=CHECKS, timeout=60)

    ask()
