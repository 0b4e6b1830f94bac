"""Which model types are served."""

from collections.abc import Callable, Mapping
from typing import Any

from worker.models import gemma2, gemma3, llama, mistral, olmo2, phi3, qwen2, qwen3
from worker.models.errors import ModelError
from worker.models.spec import Family


def families() -> Mapping[str, Callable[[], Family]]:
    """The served families by config.json's `model_type`."""
    return {
        "gemma2": gemma2.family,
        "gemma3": gemma3.inner_family,
        "gemma3_text": gemma3.family,
        "llama": llama.family,
        "mistral": mistral.family,
        "olmo2": olmo2.family,
        "phi3": phi3.family,
        "qwen2": qwen2.family,
        "qwen3": qwen3.family,
    }


def find(config: Mapping[str, Any]) -> Family:
    """The family of config.json's `model_type`. ModelError lists what is served."""
    served = families()
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in served:
        raise ModelError(f"model_type {kind!r} is not served; served: {', '.join(sorted(served))}")
    return served[kind]()
