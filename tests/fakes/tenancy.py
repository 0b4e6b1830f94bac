"""Tenants, keys and wishes, with as little said as may be."""

import dataclasses
from typing import Any

from router.fleet.drain import Drained
from router.tenancy.keys import NewKey, new_key
from router.tenancy.records import Limits, Scope, TenantRecord
from router.tenancy.store import Settlement, Store, Wanted

INFER = frozenset({Scope.INFER})
NOW = 1_800_000_000.0  # Unix seconds
_LIMITS = frozenset(field.name for field in dataclasses.fields(Limits))


def tenant(name: str, **fields: Any) -> TenantRecord:
    """A tenant; limits may be given by their names."""
    limits = {key: fields.pop(key) for key in list(fields) if key in _LIMITS}
    return TenantRecord(name=name, limits=Limits(**limits), **fields)


async def no_drain(target: str, seconds: float | None) -> Drained:
    """Of a router whose workers nobody is to drain."""
    raise AssertionError(f"{target} was drained within {seconds}")


async def add(
    store: Store, name: str, *, scopes: frozenset[Scope] = INFER, expires: float | None = None, **fields: Any
) -> str:
    """A tenant with one key, whose text is returned."""
    await store.put_tenants([tenant(name, **fields)], actor="test")
    key: NewKey = new_key(tenant=name, name="main", scopes=scopes, now=NOW, expires=expires)
    await store.add_key(key.record, actor="test")
    return key.text


def wanted(
    charge_id: str, *, prompt: int = 1, output: int = 1, of: str = "acme", adapter: str = "", **limits: Any
) -> Wanted:
    """A request's wish, under `limits`."""
    return Wanted(
        charge_id=charge_id,
        tenant=of,
        key="main",
        model="tiny",
        adapter=adapter,
        limits=Limits(**limits),
        prompt_tokens=prompt,
        output_tokens=output,
    )


def settlement(
    charge_id: str, *, prompt: int = 1, output: int = 1, cached: int = 0, finish: str = "stop"
) -> Settlement:
    """A request's end."""
    return Settlement(
        charge_id=charge_id,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        finish=finish,
        worker="w1",
    )
