"""/docs: the OpenAPI document as one plain page. It loads nothing, from this server or any other."""

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Response

Schema = Mapping[str, Any]

# The page has no scripts, and a browser must not run any that a description might smuggle in.
_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;"
    "border-bottom:1px solid #ccc}code{font-size:.9em}section{margin-top:2.5rem}"
)


def _named(schema: Schema, document: Schema) -> Schema:
    """What a $ref leads to; anything else as it is."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _kind(schema: Schema) -> str:
    """A schema's type in a few words; null, which is "not given" everywhere, is left out."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _row(name: str, schema: Schema, *, required: bool) -> str:
    need = " (required)" if required else ""
    about = escape(str(schema.get("description", "")))
    return f"<tr><td><code>{escape(name)}</code>{need}</td><td>{escape(_kind(schema))}</td><td>{about}</td></tr>"


def _table(schema: Schema) -> str:
    required = schema.get("required", ())
    rows = (_row(name, field, required=name in required) for name, field in schema.get("properties", {}).items())
    return f"<table><tr><th>field</th><th>type</th><th></th></tr>{''.join(rows)}</table>"


def _answers(operation: Schema) -> str:
    items = ((code, answer.get("description", "")) for code, answer in operation["responses"].items())
    rows = "".join(f"<li><code>{escape(code)}</code> {escape(text)}</li>" for code, text in items if code != "default")
    return f"<ul>{rows}</ul>"


def _section(method: str, path: str, operation: Schema, document: Schema) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _table(_named(content["schema"], document)) if content else ""
    about = escape(operation.get("description", ""))
    title = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>{title}<p>{about}</p>{body}{_answers(operation)}</section>"


def _parts(document: Schema) -> Iterator[str]:
    """The objects that bodies are made of."""
    for name, schema in document["components"]["schemas"].items():
        if schema.get("properties"):
            about = escape(schema.get("description", ""))
            yield f'<section><h3 id="{escape(name)}">{escape(name)}</h3><p>{about}</p>{_table(schema)}</section>'


def page(document: Schema) -> str:
    """The whole page."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    sections = "".join(
        _section(method, path, operation, document)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(info.get('description', ''))}</p>"
        f'<p>The same for machines: <a href="openapi.json">openapi.json</a></p>{sections}<h2>Objects</h2>{"".join(_parts(document))}</html>'
    )


def routes(document: Callable[[], Schema]) -> APIRouter:
    """GET /docs."""
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(page(document()), media_type="text/html", headers=_HEADERS)

    return router
