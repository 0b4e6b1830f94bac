"""What a stranger, or a tenant that wants to be another, sends to the public listener: bytes, with the status they must get."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hostile.wires import KIB, head

# What a tenant may send; 200 with its key, 401 without.
ASK = b'{"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": true}'
CHAT = b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}'
ROUTES: tuple[tuple[str, str, bytes], ...] = (
    ("POST", "/v1/completions", ASK),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/tokenize", b'{"model": "tiny", "prompt": "a"}'),
    ("POST", "/detokenize", b'{"model": "tiny", "tokens": [5]}'),
    ("POST", "/v1/load_lora_adapter", b'{"lora_name": "a"}'),
    ("POST", "/v1/unload_lora_adapter", b'{"lora_name": "a"}'),
    ("GET", "/v1/models", b""),
    ("GET", "/v1/models/tiny", b""),
)


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Texts of keys. `own` is the sender's, which may infer; `other` belongs to a neighbour."""

    own: str
    other: str
    admin: str
    expired: str
    revoked: str
    orphan: str  # its tenant was deleted

    @property
    def all(self) -> tuple[str, ...]:
        """Every one."""
        return (self.own, self.other, self.admin, self.expired, self.revoked, self.orphan)


@dataclass(frozen=True, kw_only=True)
class Try:
    """One request. `statuses` are those that are right; `served`: it must be charged to the sender."""

    name: str
    data: bytes
    statuses: tuple[int, ...]
    served: bool = False


def send(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """A whole request, after which the server may close."""
    own = (f"content-length: {len(body)}", "content-type: application/json") if body else ()
    return head(path, *own, *headers, method=method) + body


def bearer(key: str) -> str:
    """The header that a key stands in."""
    return f"authorization: Bearer {key}"


def _no_keys(cast: Cast) -> dict[str, str]:
    """Headers that hold no key of anybody's."""
    own = cast.own
    mark, prefix, secret = own.split("-")
    others = cast.other.split("-")
    basic = base64.b64encode(f":{own}".encode()).decode()
    return {
        "nothing": "x-nothing: 1",
        "no value": "authorization:",
        "no key": "authorization: Bearer",
        "a letter short": bearer(own[:-1]),
        "half": bearer(own[: len(own) // 2]),
        "prefix alone": bearer(f"{mark}-{prefix}"),
        "prefix and dash": bearer(f"{mark}-{prefix}-"),
        "another last letter": bearer(own[:-1] + ("a" if own[-1] != "a" else "b")),
        "other case": bearer(own.swapcase()),
        "twice": bearer(own + own),
        "longer": bearer(own + "x"),
        "a space inside": bearer(f"{mark}-{prefix}- {secret}"),
        "basic": f"authorization: Basic {basic}",
        "another scheme": f"authorization: Digest {own}",
        "no scheme": f"authorization: {own}",
        "expired": bearer(cast.expired),
        "revoked": bearer(cast.revoked),
        "a deleted tenant's": bearer(cast.orphan),
        "own prefix, other's secret": bearer(f"{mark}-{prefix}-{others[2]}"),
        "other's prefix, own secret": bearer(f"{mark}-{others[1]}-{secret}"),
        "SQL": bearer("' OR 1=1 --"),
        "a wildcard": bearer("octk-%-%"),
        "long": bearer("octk-" + "a" * 20 * KIB),
        "the key in another header": f"x-auth-token: {own}",
    }


def _unknown(cast: Cast) -> Iterator[Try]:
    for method, path, body in ROUTES:
        for name, header in _no_keys(cast).items():
            yield Try(name=f"{path}: {name}", data=send(method, path, body, header), statuses=(401,))


def _in_addresses(cast: Cast) -> Iterator[Try]:
    names = (
        "api_key",
        "api-key",
        "apikey",
        "key",
        "token",
        "access_token",
        "Authorization",
        "x-api-key",
        "bearer",
        "x",
    )
    for name in names:
        for header in ("x-nothing: 1", bearer(cast.own)):
            data = send("POST", f"/v1/completions?{name}={cast.own}", ASK, header)
            yield Try(name=f"?{name}= {header[:8]}", data=data, statuses=(400,))
    for name in ("x", "prompt"):
        data = send("POST", f"/v1/completions?{name}=%6Fctk{cast.own[4:]}", ASK, bearer(cast.own))
        yield Try(name=f"?{name}=, escaped", data=data, statuses=(400,))
    data = send("GET", f"/v1/models/{cast.other}", b"", bearer(cast.own))
    yield Try(name="another's key as a model", data=data, statuses=(404,))
    yield Try(name="a key as a path", data=send("GET", f"/{cast.own}", b"", bearer(cast.own)), statuses=(404,))
    two = send("POST", "/v1/completions", ASK, bearer(cast.own), f"x-api-key: {cast.other}")
    yield Try(name="two keys", data=two, statuses=(400,))
    again = send("POST", "/v1/completions", ASK, bearer(cast.own), bearer(cast.other))
    yield Try(name="two bearers", data=again, statuses=(400,))


FORGED = (
    *("x-tenant: acme", "x-octavo-tenant: acme", "x-tenant-id: acme", "tenant: acme", "x-user: acme", "from: acme"),
    *("openai-organization: acme", "openai-project: acme", "x-consumer-username: acme", "remote-user: acme"),
    *("x-priority: 0", "priority: u=0", "x-octavo-priority: 0", "x-octavo-class: 0", "x-octavo-weight: 1000"),
    *("x-forwarded-for: 127.0.0.1", "forwarded: for=127.0.0.1;host=admin", "x-real-ip: 127.0.0.1", "via: 1.1 admin"),
    *("x-forwarded-host: admin", "x-forwarded-user: ops", "x-octavo-scopes: admin", "x-octavo-salt: acme"),
    *("x-original-url: /admin/v1/tenants", "x-rewrite-url: /admin/v1/tenants", "x-forwarded-prefix: /admin"),
    *("x-http-method-override: DELETE", "x-method-override: DELETE", "x-octavo-admin: true", "cookie: tenant=acme"),
)


def _forged(cast: Cast) -> Iterator[Try]:
    for header in FORGED:
        data = send("POST", "/v1/completions", ASK, bearer(cast.own), header)
        yield Try(name=f"forged {header}", data=data, statuses=(200,), served=True)
        yield Try(name=f"forged, no key {header}", data=send("POST", "/v1/completions", ASK, header), statuses=(401,))


ADMIN_PATHS = (
    *("/admin/v1/tenants", "/admin/v1/tenants/acme", "/admin/v1/keys", "/admin/v1/usage", "/admin/v1/audit", "/admin"),
    *("/admin/v1/tenants/", "//admin/v1/tenants", "/./admin/v1/tenants", "/v1/../admin/v1/tenants", "/admin//v1/tenants"),
    *("/v1/%2e%2e/admin/v1/tenants", "/admin%2fv1%2ftenants", "/%61dmin/v1/tenants", "/ADMIN/v1/tenants", "/admin/v1/tenants;a"),
    *("/admin/v1/tenants%00", "/admin/v1/tenants%20", "/admin\\v1\\tenants", "/health/../admin/v1/tenants", "/docs/admin/v1/tenants"),
    *("http://127.0.0.1:1/admin/v1/tenants", "/octavo.v1.Admin/ListTenants", "/v1/admin/tenants", "/metrics/../admin/v1/audit"),
)  # fmt: skip


def _paths(cast: Cast) -> Iterator[Try]:
    for path in ADMIN_PATHS:
        for who, header, status in (
            ("nobody", "x-nothing: 1", (401, 400)),
            ("a tenant", bearer(cast.own), (404, 400)),
            ("an admin", bearer(cast.admin), (404, 400)),
        ):
            yield Try(name=f"{path} by {who}", data=send("GET", path, b"", header), statuses=status)
    for method in ("PUT", "DELETE", "POST", "PATCH"):
        data = send(method, "/admin/v1/tenants/acme", b"{}", bearer(cast.admin))
        yield Try(name=f"{method} /admin/v1/tenants/acme", data=data, statuses=(404, 405))


def _names(cast: Cast) -> Iterator[Try]:
    models = (
        "acme/private",
        "acme/../acme/private",
        "hidden",
        "tiny:acme/private",
        "*",
        "ti?y",
        "../tiny",
        "acme",
        "ops/main",
    )
    for model in models:
        body = ASK.replace(b"tiny", model.encode())
        data = send("POST", "/v1/completions", body, bearer(cast.own))
        yield Try(name=f"the model {model}", data=data, statuses=(404,))
        data = send("GET", f"/v1/models/{model}", b"", bearer(cast.own))
        yield Try(name=f"the model {model}, looked at", data=data, statuses=(404,))
    for name in ("acme/private", "acme/new", "shared", "../../etc/passwd"):
        body = b'{"lora_name": "%s", "lora_path": "/etc/passwd"}' % name.encode()
        for verb in ("load", "unload"):
            data = send("POST", f"/v1/{verb}_lora_adapter", body, bearer(cast.own))
            yield Try(name=f"{verb} {name}", data=data, statuses=(403, 404))


def _giants(cast: Cast, max_body: int) -> Iterator[Try]:
    key = bearer(cast.own)
    for name, headers in (
        ("a header", [key, "x: " + "a" * 40 * KIB]),
        ("a key", [bearer(cast.own + "a" * 40 * KIB)]),
        ("many headers", [key, *(f"x-{number}: y" for number in range(4_000))]),
        ("many keys", [key] * 2_000),
    ):
        yield Try(name=f"giant: {name}", data=send("POST", "/v1/completions", ASK, *headers), statuses=(431,))
    yield Try(name="giant: an address", data=send("GET", "/" + "a" * 9 * KIB, b"", key), statuses=(414,))
    large = head("/v1/completions", key, "content-type: application/json", f"content-length: {max_body + 1}")
    yield Try(name="giant: a body that is announced", data=large, statuses=(413,))
    yield Try(name="giant: a body", data=large + b" " * (max_body + 1), statuses=(413,))
    chunk = b"%x\r\n%s\r\n" % (max_body // 2, b" " * (max_body // 2))
    chunked = head("/v1/completions", key, "content-type: application/json", "transfer-encoding: chunked")
    yield Try(name="giant: chunks", data=chunked + chunk * 3, statuses=(413,))
    deep = b'{"prompt": "a", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    yield Try(name="giant: depth", data=send("POST", "/v1/completions", deep, key), statuses=(400,))
    stranger = head("/v1/completions", "content-type: application/json", f"content-length: {max_body}")
    yield Try(name="giant: a stranger's body", data=stranger, statuses=(401,))


def _smuggled(cast: Cast) -> Iterator[Try]:
    key, inner = bearer(cast.own), send("GET", "/admin/v1/tenants", b"", bearer(cast.admin))
    for name, headers in (
        ("two lengths", ["content-length: 5", "content-length: 6"]),
        ("length and chunks", ["content-length: 5", "transfer-encoding: chunked"]),
        ("a length with a sign", ["content-length: +5"]),
        ("an unknown coding", ["transfer-encoding: xchunked"]),
    ):
        yield Try(
            name=f"smuggled: {name}", data=head("/v1/completions", key, *headers) + inner, statuses=(400, 415, 501)
        )
    data = head("/v1/completions", f"{key}\r\nx-tenant: acme\r\n bearer: folded") + inner
    yield Try(name="smuggled: a folded header", data=data, statuses=(400,))


def tries(cast: Cast, max_body: int) -> list[Try]:
    """Every one, for a server that reads bodies of `max_body` bytes."""
    return [
        *(*_unknown(cast), *_in_addresses(cast), *_forged(cast), *_paths(cast), *_names(cast)),
        *(*_giants(cast, max_body), *_smuggled(cast)),
    ]
