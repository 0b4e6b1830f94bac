"""What callers ask of sampling: checked by name at once, then against the model, then handed to workers as it is."""

import math
from dataclasses import fields
from typing import Any

import pytest

from router.dispatch.validate import bad_words, resolve_sampling
from router.fleet.fleet import Pool
from router.request import GenerateRequest, SamplingOptions, TokenPrompt
from router.text.badwords import spellings
from router.text.tokenizer import load
from shared.errors import InvalidRequest
from shared.limits import MAX_ALLOWED, MAX_BAD_WORD, MAX_BAD_WORDS, MAX_BIASED
from shared.types import Sampling
from tests.fakes import tiny_tokenizers

VOCABULARY = 266
PROMPT = (10, 11, 12)
WRONG: list[tuple[str, Any]] = [
    *(("presence_penalty", value) for value in (-2.001, 2.001, math.nan, math.inf, -math.inf)),
    *(("frequency_penalty", value) for value in (-2.001, 2.001, math.nan, math.inf, -math.inf)),
    *(("repetition_penalty", value) for value in (0.0, -1.0, 1e-9, 10.01, math.nan, math.inf)),
    *(("logit_bias", ((3, value),)) for value in (-100.5, 100.5, math.nan, math.inf)),
    *(("logit_bias", ((token, 1.0),)) for token in (-1, 2**32)),
    ("logit_bias", ((3, 1.0), (3, 2.0))),
    ("logit_bias", tuple((token, 0.0) for token in range(MAX_BIASED + 1))),
    *(("allowed_token_ids", (token,)) for token in (-1, 2**32)),
    ("allowed_token_ids", tuple(range(MAX_ALLOWED + 1))),
    *(("bad_words", word) for word in (((),), ((-1,),), ((2**32,),), ((1,) * (MAX_BAD_WORD + 1),))),
    ("bad_words", ((1,),) * (MAX_BAD_WORDS + 1)),
    *(("bad_word_strings", strings) for strings in (("",), ("x" * 257,), ("x",) * (MAX_BAD_WORDS + 1))),
    *(("prompt_logprobs", count) for count in (-1, 21)),
]


@pytest.mark.parametrize(("param", "value"), WRONG, ids=lambda value: repr(value)[:40])
def test_what_can_never_be_right_is_refused_by_name(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingOptions(**{param: value})
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    "edge",
    [
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 10.0},
        {"logit_bias": tuple((token, 100.0 if token % 2 else -100.0) for token in range(MAX_BIASED))},
        {"allowed_token_ids": tuple(range(MAX_ALLOWED))},
        {"bad_words": ((1,) * MAX_BAD_WORD,) * MAX_BAD_WORDS, "bad_word_strings": ("x" * 256,) * MAX_BAD_WORDS},
        {"prompt_logprobs": 0},
        {"prompt_logprobs": 20},
    ],
    ids=lambda edge: next(iter(edge)),
)
def test_the_edges_of_the_ranges_are_right(edge: dict[str, Any]) -> None:
    SamplingOptions(**edge)


class _Pool:
    """What is asked of a router.fleet.fleet.Pool here."""

    vocab_size = VOCABULARY
    max_model_len = 100
    eos_token_ids = (2,)


def resolved(options: SamplingOptions, more: tuple[tuple[int, ...], ...] = (), **request: Any) -> Sampling:
    asked = GenerateRequest(model="", prompt=TokenPrompt(tokens=PROMPT), sampling=options, **request)
    pool: Pool = _Pool()  # type: ignore[assignment]
    return resolve_sampling(asked, PROMPT, pool, more)


def test_every_option_reaches_the_worker_as_it_was_said() -> None:
    said: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 9,
        "max_tokens": 5,
        "min_tokens": 2,
        "stop_token_ids": (4,),
        "ignore_eos": True,
        "logprobs": 3,
        "presence_penalty": 1.0,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": ((3, 2.0), (265, -1.0)),
        "allowed_token_ids": (1, 265),
        "bad_words": ((5, 6), (7,)),
        "prompt_logprobs": 4,
    }
    assert set(said) == {field.name for field in fields(Sampling)}, "an option without a line here"
    assert resolved(SamplingOptions(**said)) == Sampling(**said)


def test_bad_words_given_as_text_join_those_given_as_tokens_each_once() -> None:
    options = SamplingOptions(bad_words=((5, 6), (7,)), bad_word_strings=("x",))
    assert resolved(options, ((7,), (8, 9))).bad_words == ((5, 6), (7,), (8, 9))


@pytest.mark.parametrize(
    ("echo", "logprobs", "prompt_logprobs", "expected"),
    [(True, 2, None, 2), (True, 2, 5, 5), (True, None, None, None), (False, 2, None, None), (False, None, 0, 0)],
)
def test_an_echo_with_log_probabilities_asks_for_the_prompts(
    echo: bool, logprobs: int | None, prompt_logprobs: int | None, expected: int | None
) -> None:
    options = SamplingOptions(logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    assert resolved(options, echo=echo).prompt_logprobs == expected


OUTSIDE: dict[str, Any] = {
    "stop_token_ids": (VOCABULARY,),
    "logit_bias": ((5, 1.0), (VOCABULARY, 1.0)),
    "allowed_token_ids": (5, 2**32 - 1),
    "bad_words": ((5,), (6, VOCABULARY)),
}


@pytest.mark.parametrize("param", OUTSIDE)
def test_case_c26_a_token_outside_the_vocabulary_is_refused_by_name_before_any_worker_sees_it(param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolved(SamplingOptions(**{param: OUTSIDE[param]}))
    assert refused.value.param == param
    assert f"0 to {VOCABULARY - 1}" in refused.value.message


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": (5, 6), "bad_words": ((5,), (6,))},
        {"allowed_token_ids": (2, 30), "stop_token_ids": (30,), "min_tokens": 1},
    ],
    ids=["bad words", "ends"],
)
def test_options_that_leave_nothing_to_sample_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolved(SamplingOptions(**options))
    assert refused.value.param == "allowed_token_ids"


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": (5, 6), "bad_words": ((5,), (6, 5))},
        {"allowed_token_ids": (2, 30), "stop_token_ids": (30,)},
        {"allowed_token_ids": (2, 30), "min_tokens": 1},
        {"bad_words": ((5,),), "min_tokens": 1},
    ],
)
def test_options_that_leave_something_to_sample_pass(options: dict[str, Any]) -> None:
    resolved(SamplingOptions(**options))


KINDS = [tiny_tokenizers.byte_level, tiny_tokenizers.sentencepiece, tiny_tokenizers.gemma_like]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("string", ["END", "stop", "你好", "the world", " padded", "\n"])
def test_a_bad_word_is_spelled_as_it_would_stand_in_an_output(kind: Any, string: str) -> None:
    """Behind other tokens, its two spellings are the string and the string after a space."""
    text = load(tiny_tokenizers.bundle(kind()).files)
    words = spellings(text, (string,), "bad_word_strings")
    before = list(text.tokenizer.encode("x", add_special_tokens=False).ids)
    start = text.decode(before, skip_special_tokens=False)
    read = [text.decode([*before, *word], skip_special_tokens=False).removeprefix(start) for word in words]
    assert read == [string, f" {string}"]
    special = text.vocabulary.special
    assert not any(token in special for word in words for token in word)


def test_equal_spellings_are_told_once_and_none_of_none() -> None:
    text = load(tiny_tokenizers.bundle().files)
    assert len(spellings(text, ("END", "END", " END"), "bad_word_strings")) == 3
    assert spellings(text, (), "bad_word_strings") == ()


def test_a_bad_word_of_too_many_tokens_is_refused_by_name() -> None:
    assert bad_words(((1,) * MAX_BAD_WORD,)) == ((1,) * MAX_BAD_WORD,)
    with pytest.raises(InvalidRequest) as refused:
        bad_words(((1,), (2,) * (MAX_BAD_WORD + 1)))
    assert refused.value.param == "bad_word_strings"
