"""A YAML document of tenants, which is only ever imported: the store is what counts.

    tenants:
      - name: acme
        weight: 2
        limits: {requests_per_minute: 60, concurrent_requests: 8}
        models: ["llama-*"]

A tenant's fields are those of TenantRecord; what a document leaves out is the default. Tenants that it does not name stay as they are.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import yaml

from router.tenancy.records import NOT_WHOLE, Limits, TenantRecord, is_whole
from shared.errors import InvalidRequest

T = TypeVar("T")

_MOST_CHARACTERS = 4 << 20
_FIELDS = frozenset(field.name for field in dataclasses.fields(TenantRecord)) - {"uid"}
_LIMITS = frozenset(field.name for field in dataclasses.fields(Limits))
_TUPLES = ("models", "adapters")
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses a name that stands twice in one place: YAML forbids it, and of two limits the reader cannot know which one counts."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """See yaml.composer.Composer. What a merge (<<) brings may be overridden: it is no second name."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names = Counter(
            name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode) and name.tag != _MERGE
        )
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise yaml.composer.ComposerError(None, None, f"{twice[:100]!r} stands there twice", node.start_mark)
        return node


def _wrong(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {what}", param=where)


def _mapping(value: object, where: str, names: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(where, "must hold names and values")
    unknown = next((str(name) for name in value if name not in names), None)
    if unknown is not None:
        raise _wrong(where, f"has an unknown name {unknown[:100]!r}")
    return value


def _strings(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(where, "must be a list of texts")
    return tuple(value)


def _labels(value: object, where: str) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise _wrong(where, "must hold texts by name")
    if not all(is_whole(text) for pair in value.items() for text in pair):
        raise _wrong(where, NOT_WHOLE)
    return dict(value)


def tenant_from(value: object, where: str = "tenant") -> TenantRecord:
    """A tenant as documents (and the admin's JSON) write it. Raises InvalidRequest that names the place, `where` being this one's."""
    given = dict(_mapping(value, where, _FIELDS))
    if not isinstance(given.get("name"), str):
        raise _wrong(f"{where}.name", "is needed, as a text")
    for name in ("limits", "labels"):
        if name in given and given[name] is None:
            del given[name]  # 0, false or [] is something else, and must not mean "no limits"
    if "limits" in given:
        given["limits"] = _limits(given["limits"], f"{where}.limits")
    for name in set(_TUPLES) & given.keys():
        given[name] = _strings(given[name], f"{where}.{name}")
    if "labels" in given:
        given["labels"] = _labels(given["labels"], f"{where}.labels")
    if not isinstance(given.get("cache_scope", ""), str):
        raise _wrong(f"{where}.cache_scope", "must be a text")
    return _made(lambda: TenantRecord(**given), where)


def _limits(value: object, where: str) -> Limits:
    given = _mapping(value, where, _LIMITS)
    return _made(lambda: Limits(**given), where)


def _made(make: Callable[[], T], where: str) -> T:
    try:
        return make()
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}", param=f"{where}.{error.param}") from error


def tenants_from_yaml(text: str) -> list[TenantRecord]:
    """Every tenant of a document. Raises InvalidRequest that names what is wrong with it."""
    if len(text) > _MOST_CHARACTERS:
        raise InvalidRequest(f"the document is longer than {_MOST_CHARACTERS} characters")
    try:
        document = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: numbers and dates that cannot be
        raise InvalidRequest(f"the document is not YAML: {error}") from error
    listed = _mapping(document, "document", frozenset({"tenants"})).get("tenants")
    if not isinstance(listed, list):
        raise _wrong("tenants", "must be a list")
    tenants = [tenant_from(value, f"tenants[{index}]") for index, value in enumerate(listed)]
    names = [tenant.name for tenant in tenants]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise _wrong("tenants", f"{twice!r} stands there twice")
    return tenants


def document_of(tenant: TenantRecord) -> dict[str, Any]:
    """A tenant as a document writes it: what is no default."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(TenantRecord):
        value = getattr(tenant, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name != "uid" and value != default:
            fields[field.name] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, Limits):
        return {name: limit for name, limit in dataclasses.asdict(value).items() if limit is not None}
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
