"""Which worker gets a request: policies behind one signature, in a dict of names."""

from collections.abc import Mapping
from types import MappingProxyType

from router.placement.least_loaded import least_loaded
from router.placement.view import Policy

POLICIES: Mapping[str, Policy] = MappingProxyType({"least_loaded": least_loaded})
