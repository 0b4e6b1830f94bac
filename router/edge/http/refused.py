"""Parameters of OpenAI's API and its relatives that are not served: refused where they would change the output."""

from collections.abc import Mapping
from typing import Any

from shared.errors import InvalidRequest

# Name -> the values (beside null) that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def check(extra: Mapping[str, Any] | None, n: int) -> None:
    """Raises InvalidRequest naming the first parameter in `extra` that asks for what is not served; `n`: choices.

    What an API serves (echo and best_of in completions) is a field of its body, and never among `extra`.
    """
    given = extra or {}
    for name in filter(given.__contains__, _NEUTRAL):
        if given[name] is not None and given[name] not in _NEUTRAL[name]:
            raise unsupported(name)
    if given.get("echo") not in (None, False):
        raise _completions_alone("echo")
    if given.get("best_of") not in (None, n):
        raise _completions_alone("best_of")


def _completions_alone(name: str) -> InvalidRequest:
    message = f"{name} is a parameter of /v1/completions alone"
    return InvalidRequest(message, param=name, code="unsupported_parameter")


def unsupported(name: str) -> InvalidRequest:
    """The refusal of a parameter that is known and not served."""
    return InvalidRequest(
        f"{name} is not supported by this server yet",
        param=name,
        code="unsupported_parameter",
    )
