"""Which worker gets a request: policies behind one signature, in a dict of names."""

from collections.abc import Mapping
from types import MappingProxyType

from router.placement.cost import cost
from router.placement.least_loaded import least_loaded
from router.placement.round_robin import round_robin
from router.placement.session import session
from router.placement.view import Policy

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"cost": cost, "least_loaded": least_loaded, "round_robin": round_robin, "session": session}
)
LOOKS_AT_PREFIXES = frozenset({"cost"})  # these need to hear of workers' caches
