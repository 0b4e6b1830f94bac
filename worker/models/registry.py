"""Which model types are served."""

from collections.abc import Mapping
from typing import Any

from worker.models import llama
from worker.models.errors import ModelError
from worker.models.spec import Family


def find(config: Mapping[str, Any]) -> Family:
    """The family of config.json's `model_type`. ModelError lists what is served."""
    families = {"llama": llama.family}
    kind = config.get("model_type")
    if kind not in families:
        raise ModelError(f"model_type {kind!r} is not served; served: {', '.join(sorted(families))}")
    return families[kind]()
