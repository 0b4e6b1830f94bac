"""One spelling of config.json. transformers 5 renamed keys that models on disk spell in either way."""

from collections.abc import Mapping
from typing import Any

from worker.sources.errors import SourceError

DEFAULT_ROPE_THETA = 10_000.0  # what transformers assumes where a configuration says nothing


def normalise(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `dtype` (a bare name, where given) in place of `torch_dtype`, and the rotary settings in both spellings.

    Afterwards `rope_theta` (float), `rope_scaling` (None, or a dict with `rope_type`) and `rope_parameters` (dict with `rope_type`
    and `rope_theta`) agree. Rotary settings by layer type (dicts of dicts) stay as they are. Raises SourceError naming the key.
    """
    result = dict(config)
    dtype = result.pop("torch_dtype", None) or result.get("dtype")
    result.pop("dtype", None)
    if dtype is not None:
        result["dtype"] = str(dtype).removeprefix("torch.")
    if not _by_layer_type(result.get("rope_parameters")):
        result.update(_rotary(result))
    return result


def _by_layer_type(parameters: Any) -> bool:
    return isinstance(parameters, Mapping) and any(isinstance(value, Mapping) for value in parameters.values())


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise SourceError(f"config.json: {name} must be an object, is {found!r:.60}")
    given = dict(found)
    theta = _theta(given.pop("rope_theta", None) or config.get("rope_theta") or DEFAULT_ROPE_THETA)
    old_kind = given.pop("type", None)
    kind = given.pop("rope_type", None) or old_kind or "default"
    scaling = None if kind == "default" else {"rope_type": kind, **given}
    parameters = {"rope_type": kind, "rope_theta": theta, **given}
    return {"rope_theta": theta, "rope_scaling": scaling, "rope_parameters": parameters}


def _theta(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise SourceError(f"config.json: rope_theta must be a number, is {value!r:.60}") from None


def eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """The end tokens that the first of `configs` to name any gives, each once; none of them naming any, none.

    Raises SourceError for what is no token id.
    """
    given = next((config["eos_token_id"] for config in configs if config.get("eos_token_id") is not None), ())
    ids = given if isinstance(given, list | tuple) else (given,)
    wrong = [each for each in ids if not isinstance(each, int) or isinstance(each, bool) or each < 0]
    if wrong:
        raise SourceError(f"eos_token_id must be a token id or a list of them, holds {wrong[0]!r:.60}")
    return tuple(dict.fromkeys(ids))
