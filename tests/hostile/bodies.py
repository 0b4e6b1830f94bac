"""JSON bodies that are wrong, by route, each with the parameter that the answer must name."""

from collections.abc import Iterator
from typing import Any

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"

HELLO = [{"role": "user", "content": "Hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
DEEP = {"a": {"a": {"a": [[[[[[]]]]]]}}}

# path, body, the parameter that the answer names
Wrong = tuple[str, Any, str | None]


def chat(**fields: Any) -> dict[str, Any]:
    """A chat that is right but for `fields`."""
    return {"messages": HELLO, **fields}


def text(**fields: Any) -> dict[str, Any]:
    """A completion that is right but for `fields`."""
    return {"prompt": "a", **fields}


_NO_NUMBER = ("1", True, [], DEEP)
_NO_INTEGER = (*_NO_NUMBER, 1.5, 10**400)

# What both generating routes take: field -> values that no one may send.
FIELDS: dict[str, tuple[Any, ...]] = {
    "model": (1, ["tiny"], {}, True),
    "stream": ("true", 1, [], {}),
    "stream_options": ("usage", 1, [], {"include_usage": True}),
    "n": (*_NO_INTEGER, 0, -1, 65, 10**30),
    "temperature": (*_NO_NUMBER, -0.1, 2.1, 1e300, 10**400),
    "top_p": (*_NO_NUMBER, 0, -0.5, 1.01, 1e300),
    "top_k": (*_NO_INTEGER, -2, 2**32, 1.0),
    "min_p": (*_NO_NUMBER, -0.5, 1.5),
    "seed": (*_NO_INTEGER, 2**64, -(2**63) - 1),
    "max_tokens": (*_NO_INTEGER, -5, 2**40),
    "min_tokens": (*_NO_INTEGER, -1, 2**32),
    "stop": ("", ["a", ""], 5, {}, ["a"] * 17, "a" * 257),
    "stop_token_ids": (3, {}, [-1], [2**32], list(range(65))),
    "ignore_eos": ("no", 1, [], {}),
    "presence_penalty": (*_NO_NUMBER, -2.01, 2.01, 1e300),
    "frequency_penalty": (*_NO_NUMBER, -2.01, 2.01, -1e300),
    "repetition_penalty": (*_NO_NUMBER, 0, -1, 10.1, 1e-9),
    "logit_bias": (
        *("x", 1, [1], {"x": 1}, {"-1": 1}, {"1.5": 1}, {"": 1}, {"٣": 1}, {"01": 1}, {"5": 100.5}, {"5": -101}),
        *({"4294967296": 1}, {"9" * 400: 1}, {str(i): 1 for i in range(1025)}),
    ),
    "allowed_token_ids": (3, {}, [], [-1], [2**32], list(range(4097))),
    "bad_words": ("x", 1, {}, [""], [[]], [[-1]], [[2**32]], ["x"] * 65, [[1]] * 65, ["x" * 257]),
    "prompt_logprobs": (*_NO_INTEGER, -1, 21),
    "truncate_prompt_tokens": (*_NO_INTEGER, 0, -1, 2**32),
}

# The same, where the answer names a place within.
PLACES: dict[str, tuple[dict[str, Any], ...]] = {
    "stream_options.include_usage": ({"stream": True, "stream_options": {"include_usage": "yes"}},),
    "stop[1]": ({"stop": ["a", 5]}, {"stop": ["a", None]}),
    "stop_token_ids[0]": ({"stop_token_ids": ["a"]}, {"stop_token_ids": [1.5]}, {"stop_token_ids": [True]}),
    "logit_bias.5": ({"logit_bias": {"5": "x"}}, {"logit_bias": {"5": True}}, {"logit_bias": {"5": None}}),
    "allowed_token_ids[0]": ({"allowed_token_ids": [None]}, {"allowed_token_ids": ["1"]}),
    "bad_words[0]": ({"bad_words": [[1] * 33]},),
    "bad_words[1]": ({"bad_words": ["a", 1]}, {"bad_words": ["a", {}]}),
    "bad_words[0][0]": ({"bad_words": [["x"]]}, {"bad_words": [[1.5]]}),
    "prompt_logprobs": ({"prompt_logprobs": 1, "stream": True},),
    "min_tokens": ({"min_tokens": 5, "max_tokens": 4},),
}

# Known, not served, and such that the answer would be another one.
UNSERVED: dict[str, tuple[Any, ...]] = {
    "tools": ([{"type": "function", "function": {"name": "f"}}],),
    "tool_choice": ("required", {"type": "function"}),
    "functions": ([{}],),
    "response_format": ({"type": "json_object"}, {"type": "json_schema", "json_schema": {}}),
    "modalities": (["text", "audio"],),
    "audio": ({"voice": "x"},),
    "reasoning_effort": ("high",),
    "chat_template": ("{{ 1 }}",),
    "guided_json": ({},),
    "guided_regex": ("a+",),
    "structured_outputs": ({"regex": "a"},),
    "use_beam_search": (True,),
    "include_stop_str_in_output": (True,),
}

_MESSAGES: list[tuple[Any, str]] = [
    (None, "messages"),
    ("Hello", "messages"),
    ({}, "messages"),
    ([], "messages"),
    (["Hello"], "messages[0]"),
    ([None], "messages[0]"),
    ([[]], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"),
    ([*HELLO, {"role": 1, "content": "x"}], "messages[1].role"),
    ([{"role": "king", "content": "x"}], "messages[0].role"),
    ([{"role": "", "content": "x"}], "messages[0].role"),
    ([{"role": "User", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 7}], "messages[0].content"),
    ([{"role": "user", "content": {}}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}], "messages[0].content[1].type"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
    ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
    (HELLO * 4_097, "messages"),
]

_PROMPTS: list[tuple[Any, str]] = [
    (None, "prompt"),
    (5, "prompt"),
    (True, "prompt"),
    ({}, "prompt"),
    ([], "prompt"),
    (["a", 1], "prompt[1]"),
    ([1, "a"], "prompt[1]"),
    ([1, True], "prompt[1]"),
    ([1.5], "prompt[0]"),
    ([[1], ["a"]], "prompt[1][0]"),
    ([[1], [[1]]], "prompt[1][0]"),
    ([None], "prompt[0]"),
    ([DEEP], "prompt[0]"),
    (["a"] * 129, "prompt"),
]

_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_completion_tokens": "9"}, "max_completion_tokens"),
    ({"max_completion_tokens": 1, "max_tokens": 2}, "max_completion_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": "true"}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 10**400}, "top_logprobs"),
    ({"add_generation_prompt": "no"}, "add_generation_prompt"),
    ({"echo": True}, "echo"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "x"}, "suffix"),
]

_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ["a"] * 128, "n": 64}, "n"),
    ({"prompt": ["a"] * 128, "best_of": 64}, "best_of"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 0, "echo": False}, "max_tokens"),
    ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": "1"}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"echo": "yes"}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"suffix": 1}, "suffix"),
    ({"best_of": "x"}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"best_of": 65}, "best_of"),
    ({"best_of": 2, "n": 3}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
]

_OTHERS: list[Wrong] = [
    (TOKENIZE, {}, "prompt"),
    (TOKENIZE, {"prompt": 1}, "prompt"),
    (TOKENIZE, {"prompt": [1]}, "prompt"),
    (TOKENIZE, {"messages": []}, "messages"),
    (TOKENIZE, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    (TOKENIZE, {"messages": HELLO, "prompt": "a"}, "messages"),
    (TOKENIZE, {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
    (TOKENIZE, {"messages": HELLO, "add_generation_prompt": 1}, "add_generation_prompt"),
    (TOKENIZE, {"prompt": "a", "return_token_strs": True}, "return_token_strs"),
    (TOKENIZE, {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
    (TOKENIZE, {"prompt": "a", "model": 1}, "model"),
    (DETOKENIZE, {}, "tokens"),
    (DETOKENIZE, {"tokens": None}, "tokens"),
    (DETOKENIZE, {"tokens": "a"}, "tokens"),
    (DETOKENIZE, {"tokens": ["a"]}, "tokens[0]"),
    (DETOKENIZE, {"tokens": [1.5]}, "tokens[0]"),
    (DETOKENIZE, {"tokens": [True]}, "tokens[0]"),
    (DETOKENIZE, {"tokens": [1], "model": 1}, "model"),
]

# Wrong only for a given vocabulary; no token id of any model is that large.
_BEYOND = 2**31
FOR_A_MODEL: list[Wrong] = [
    (TEXT, {"prompt": [-1]}, "prompt"),
    (TEXT, {"prompt": [_BEYOND]}, "prompt"),
    (TEXT, {"prompt": [[5], [_BEYOND]]}, "prompt"),
    (TEXT, {"prompt": [2**64]}, "prompt"),
    (TEXT, {"prompt": [10**30]}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt"),
    (TEXT, text(stop_token_ids=[_BEYOND]), "stop_token_ids"),
    (TEXT, text(logit_bias={str(_BEYOND): 1}), "logit_bias"),
    (TEXT, text(allowed_token_ids=[_BEYOND]), "allowed_token_ids"),
    (TEXT, text(bad_words=[[5, _BEYOND]]), "bad_words"),
    (TEXT, text(bad_words=["ab " * 85]), "bad_words"),
    (TEXT, text(max_tokens=10**6), "max_tokens"),
    (TEXT, {"prompt": "a " * 200_000}, "prompt"),
    (TEXT, {"prompt": [5] * 200_000}, "prompt"),
    (TEXT, {"prompt": ["a", "a " * 200_000]}, "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": "a " * 200_000}]}, "messages"),
    (CHAT, chat(stop_token_ids=[_BEYOND]), "stop_token_ids"),
    (CHAT, chat(logit_bias={str(_BEYOND): 1}), "logit_bias"),
    (CHAT, chat(max_completion_tokens=10**6), "max_completion_tokens"),
    (CHAT, chat(min_tokens=10**6), "min_tokens"),
    (DETOKENIZE, {"tokens": [-1]}, "tokens"),
    (DETOKENIZE, {"tokens": [_BEYOND]}, "tokens"),
    (DETOKENIZE, {"tokens": [10**30]}, "tokens"),
]


def wrong_bodies() -> Iterator[Wrong]:
    """Every body that is wrong for any model."""
    for path, right in ((CHAT, chat), (TEXT, text)):
        yield from ((path, body, None) for body in ([], "text", 5, None, True, [HELLO]))
        for name, values in {**FIELDS, **UNSERVED}.items():
            yield from ((path, right(**{name: value}), name) for value in values)
        for name, several in PLACES.items():
            yield from ((path, right(**fields), name) for fields in several)
    yield CHAT, {}, "messages"
    yield TEXT, {}, "prompt"
    yield from ((CHAT, {"messages": messages}, name) for messages, name in _MESSAGES)
    yield from ((TEXT, {"prompt": prompt}, name) for prompt, name in _PROMPTS)
    yield from ((CHAT, chat(**fields), name) for fields, name in _CHATS)
    yield from ((TEXT, text(**fields), name) for fields, name in _TEXTS)
    yield from _OTHERS
