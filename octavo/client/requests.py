"""What a caller says, as the messages of protos/inference.proto. Defaults are the server's: what is not given is not sent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypedDict

from protos import inference_pb2 as pb
from shared.errors import InvalidRequest

DEFAULT_TARGET = "127.0.0.1:50051"

Messages = Sequence[Mapping[str, str]]


class Options(TypedDict, total=False):
    """Everything that may be said of a generation beside its prompt. Meanings, ranges and defaults: protos/inference.proto."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str | Sequence[int]]
    prompt_logprobs: int
    n: int
    return_tokens: bool
    request_id: str
    echo: bool
    truncate_prompt_tokens: int
    prompt_cache_key: str


_SCALARS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens"),
    *("ignore_eos", "logprobs", "prompt_logprobs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_OUTSIDE = ("n", "return_tokens", "request_id", "echo", "truncate_prompt_tokens", "prompt_cache_key")
_LISTS = ("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words")


@contextmanager
def _fitting(param: str) -> Iterator[None]:
    """What has no place in the message is the caller's fault."""
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


def _assign(message: pb.Sampling | pb.GenerateRequest, name: str, value: object) -> None:
    with _fitting(name):
        setattr(message, name, value)


def _sampling(options: Options) -> pb.Sampling:
    sampling = pb.Sampling()
    for name, value in options.items():
        if name in _SCALARS and value is not None:
            _assign(sampling, name, value)
    stop = options.get("stop") or ()
    with _fitting("stop"):
        sampling.stop.extend([stop] if isinstance(stop, str) else stop)
    with _fitting("stop_token_ids"):
        sampling.stop_token_ids.extend(options.get("stop_token_ids") or ())
    with _fitting("logit_bias"):
        sampling.logit_bias.update(options.get("logit_bias") or {})
    with _fitting("allowed_token_ids"):
        sampling.allowed_token_ids.extend(options.get("allowed_token_ids") or ())
    with _fitting("bad_words"):
        _add_bad_words(sampling, options.get("bad_words") or ())
    return sampling


def _add_bad_words(sampling: pb.Sampling, words: Sequence[str | Sequence[int]]) -> None:
    for word in words:
        if isinstance(word, str):
            sampling.bad_word_strings.append(word)
        else:
            sampling.bad_words.add(ids=word)


def chat_of(messages: Messages) -> pb.Chat:
    """A conversation. Raises InvalidRequest naming the turn that is none."""
    chat = pb.Chat()
    for position, message in enumerate(messages):
        try:
            chat.messages.add(**message)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"messages[{position}]: {error}", param="messages") from error
    return chat


def _ids(tokens: Sequence[int], param: str) -> pb.TokenIds:
    try:
        return pb.TokenIds(ids=tokens)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


def _request(model: str, options: Options, *, whole: bool) -> pb.GenerateRequest:
    unknown = set(options) - {*_SCALARS, *_OUTSIDE, *_LISTS}
    if unknown:
        name = min(unknown)
        raise InvalidRequest(f"{name} is not an option", param=name)
    request = pb.GenerateRequest(model=model, sampling=_sampling(options), whole=whole)
    for name in _OUTSIDE:
        value = options.get(name)
        if value is not None:
            _assign(request, name, value)
    return request


def chat_request(messages: Messages, model: str, options: Options, *, whole: bool) -> pb.GenerateRequest:
    """A chat completion's request. Raises InvalidRequest for what has no place in the message."""
    request = _request(model, options, whole=whole)
    request.chat.CopyFrom(chat_of(messages))
    return request


def completion_request(prompt: str | Sequence[int], model: str, options: Options, *, whole: bool) -> pb.GenerateRequest:
    """A text's (str) or tokens' completion. Raises InvalidRequest for what has no place in the message."""
    request = _request(model, options, whole=whole)
    if isinstance(prompt, str):
        request.prompt = prompt
    else:
        request.prompt_tokens.CopyFrom(_ids(prompt, "prompt"))
    return request


def tokenize_request(text: str | Messages, model: str, add_special_tokens: bool | None) -> pb.TokenizeRequest:
    """Text, or a conversation as the model's template renders it."""
    request = pb.TokenizeRequest(model=model)
    if isinstance(text, str):
        request.text = text
    else:
        request.chat.CopyFrom(chat_of(text))
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    return request


def detokenize_request(tokens: Sequence[int], model: str, skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """Token ids."""
    ids = _ids(tokens, "tokens").ids
    return pb.DetokenizeRequest(model=model, tokens=ids, skip_special_tokens=skip_special_tokens)
