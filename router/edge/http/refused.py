"""Parameters of OpenAI's API and its relatives that are not served: refused where they would change the output."""

from collections.abc import Mapping
from typing import Any

from shared.errors import InvalidRequest

# Name -> the values (beside null) that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def check(extra: Mapping[str, Any] | None, n: int) -> None:
    """Raises InvalidRequest naming the first parameter in `extra` that asks for what is not served; `n`: choices."""
    given = {name: value for name, value in (extra or {}).items() if value is not None}
    for name in filter(_NEUTRAL.__contains__, given):
        if given[name] not in _NEUTRAL[name]:
            raise _unsupported(name)
    if given.get("best_of", n) != n:
        raise _unsupported("best_of")


def _unsupported(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is not supported by this server yet",
        param=name,
        code="unsupported_parameter",
    )
