"""What the store keeps, as frozen records: tenants, keys, adapters, public prefixes, and the books. Times are Unix seconds, of the host's
wall clock.

Whoever makes a record checks it (`__post_init__` raises InvalidRequest naming the field), so that what the store holds is right.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from fnmatch import fnmatchcase
from types import MappingProxyType

from shared.errors import InvalidRequest

CLASSES = 8  # priority classes, 0 the highest
DENIED = "admin.denied"  # the audit log's action of an operator's call that was refused: it changed nothing
OWN = "own"  # the cache scope of a tenant that shares with no one
NOTHING: Mapping[str, str] = MappingProxyType({})

NOT_WHOLE = "must hold whole characters, not halves of surrogate pairs"  # which UTF-8 cannot write

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_PATTERN = re.compile(r"[!-~]{1,256}")
_MOST_PATTERNS = 1_024
_MOST_LABELS = 32
_MOST_WEIGHT = 1_000_000.0
_MOST_PREFIX = 1 << 18  # characters of a public prefix


def _require(ok: bool, param: str, message: str) -> None:
    if not ok:
        raise InvalidRequest(f"{param} {message}", param=param)


def is_whole(text: str) -> bool:
    """Whether UTF-8 can write it."""
    return _SURROGATE.search(text) is None


def is_number(value: object, *, least: float, most: float) -> bool:
    """Whether it is a number in these bounds: no bool, not NaN, however many digits a document gave it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def check_name(name: str, param: str) -> None:
    """Raises InvalidRequest where `name` cannot be a tenant's, a key's or an adapter's."""
    _require(
        bool(_NAME.fullmatch(name)),
        param,
        "must be 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning and ending in a letter or digit",
    )


class Scope(Enum):
    """What a key may be used for: inference; the tenant's own adapters; everything, on the admin's listener."""

    INFER = "infer"
    ADAPTERS = "adapters"
    ADMIN = "admin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """A tenant's bounds; None is "no bound". Rates are per minute, any minute: what is used comes back a minute later."""

    requests_per_minute: int | None = None
    prompt_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    max_context: int | None = None  # tokens of prompt and one choice's output
    max_n: int | None = None  # choices of a request
    resident_adapters: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first bound that is none."""
        for each in fields(self):
            value = getattr(self, each.name)
            ok = value is None or (isinstance(value, int) and is_number(value, least=1, most=2**53 - 1))
            _require(ok, each.name, "must be a whole number above 0, or left out")

    @property
    def free(self) -> bool:
        """Whether nothing that is counted over several requests bounds them: each alone may still be refused."""
        counted = (self.requests_per_minute, self.prompt_tokens_per_minute, self.output_tokens_per_minute)
        return {*counted, self.concurrent_requests, self.resident_adapters} == {None}


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantRecord:
    """A tenant. `models` and `adapters` are patterns (*, ?) of the names that it sees.

    `cache_scope` is "own", or the name of a group whose members share cached prefixes. `top_class` is the highest priority class that
    its requests may have (0 is highest), and the one they have where they name none. `uid` is the store's: it tells a tenant from an
    earlier one of the same name.
    """

    name: str
    weight: float = 1.0
    top_class: int = 0
    limits: Limits = NO_LIMITS
    models: tuple[str, ...] = ("*",)
    adapters: tuple[str, ...] = ("*",)
    cache_scope: str = OWN
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    uid: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first field that is out of range."""
        check_name(self.name, "name")
        ok = is_number(self.weight, least=0.0, most=_MOST_WEIGHT) and self.weight > 0
        _require(ok, "weight", f"must be above 0 and at most {_MOST_WEIGHT:g}")
        ok = is_number(self.top_class, least=0, most=CLASSES - 1) and isinstance(self.top_class, int)
        _require(ok, "top_class", f"must be a whole number from 0 (highest) to {CLASSES - 1}")
        check_name(self.cache_scope, "cache_scope")
        for param, patterns in (("models", self.models), ("adapters", self.adapters)):
            _require(len(patterns) <= _MOST_PATTERNS, param, f"takes at most {_MOST_PATTERNS} patterns")
            _require(all(_PATTERN.fullmatch(p) for p in patterns), param, "must be names, in which * and ? match any")
        _require(len(self.labels) <= _MOST_LABELS, "labels", f"takes at most {_MOST_LABELS}")
        ok = all(0 < len(k) <= 64 and len(v) <= 256 for k, v in self.labels.items())
        _require(ok, "labels", "must have names of 1 to 64 and values of up to 256 characters")


def etag(tenant: TenantRecord) -> str:
    """Names what is kept of a tenant: another one once anything of it has changed."""
    values = {each.name: getattr(tenant, each.name) for each in fields(tenant)}
    text = json.dumps({**values, "limits": asdict(tenant.limits), "labels": dict(tenant.labels)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of `patterns` is of `name`. A bracket is a bracket: of fnmatch's wildcards these are * and ? alone."""
    return any(pattern == "*" or fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRecord:
    """A key without its secret. `prefix` finds it; `digest` is SHA-256 over `salt` and the secret. `expires` None is never."""

    tenant: str
    name: str
    prefix: str
    salt: bytes
    digest: bytes
    scopes: frozenset[Scope] = frozenset({Scope.INFER})
    created: float = 0.0
    expires: float | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first field that is out of range."""
        check_name(self.name, "name")
        _require(bool(self.scopes), "scopes", "must not be empty")
        ok = self.expires is None or is_number(self.expires, least=-math.inf, most=math.inf)
        _require(ok, "expires", "must be Unix seconds, or left out")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRecord:
    """An adapter that the operator or a tenant loaded at run time, at every worker that serves `model`. `tenant` is empty where all see it;
    `digest` is the version that its name means, empty where that is whichever its source holds.
    """

    name: str
    source: str
    tenant: str = ""
    digest: bytes = b""
    pinned: bool = False
    created: float = 0.0
    model: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first field that is out of range."""
        _require(bool(_PATTERN.fullmatch(self.name)) and "/" not in self.name, "name", "must be a name without '/'")
        _require(0 < len(self.source) <= 4096, "source", "must be 1 to 4096 characters")

    @property
    def canonical(self) -> str:
        """Its name on the wire: `name`, or `tenant/name`."""
        return f"{self.tenant}/{self.name}" if self.tenant else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixRecord:
    """A public prefix, which the operator registered: prompts that begin with all of it share what is cached of it, whosever they are.

    One of `text` (how a prompt begins) and `system` (a chat's system message, its first) is given; `models` are patterns of the served
    names that it is for.
    """

    name: str
    text: str = ""
    system: str = ""
    models: tuple[str, ...] = ("*",)
    created: float = 0.0

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming the first field that is out of range."""
        check_name(self.name, "name")
        _require(bool(self.text) != bool(self.system), "text", "or system must be given, and not both")
        _require(is_whole(self.text + self.system), "text" if self.text else "system", NOT_WHOLE)
        fits = len(self.text) + len(self.system) <= _MOST_PREFIX
        _require(fits, "text" if self.text else "system", f"may have {_MOST_PREFIX} characters")
        _require(0 < len(self.models) <= _MOST_PATTERNS, "models", f"takes 1 to {_MOST_PATTERNS} patterns")
        _require(all(map(_PATTERN.fullmatch, self.models)), "models", "must be names, in which * and ? match any")


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """One line of the ledger: a request and what it used. `id` is unique; `time` is its settlement's.

    `finish` is stop, length, ok (choices ended differently), cancelled, an error's code, or lost (its router ended first).
    """

    id: str
    tenant: str
    key: str
    model: str
    adapter: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish: str
    worker: str
    started: float
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRecord:
    """One change of the store, or a call that was denied: who (`actor`: tenant/key, or local:user; empty: nobody knows), from where
    (`origin`: an address, or empty for this machine's commands), what (`action`: tenant.put ...) and on what. `before` and `detail` are
    what was and what is kept, as JSON or in words; empty for nothing. No secret stands there.
    """

    time: float
    actor: str
    action: str
    subject: str
    detail: str = ""
    origin: str = ""
    before: str = ""
