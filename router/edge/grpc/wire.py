"""protos/inference.proto to and from the router's request types."""

from collections.abc import Sequence

from protos import inference_pb2 as pb
from router.edge.bounds import MAX_DETOKENIZED, MAX_PROMPT_TOKENS, check_count, check_tokens, checked_chat, turn
from router.request import (
    MAX_STOP_TOKENS,
    MAX_STOPS,
    ChatPrompt,
    Ended,
    GenerateRequest,
    Logprobs,
    Piece,
    Prompt,
    SamplingOptions,
    TextPrompt,
    TokenPrompt,
    TokenText,
    Usage,
)
from router.service import Generation, ModelCard
from router.tenancy.caller import OPEN_CALLER, Caller
from shared.errors import InvalidRequest
from shared.limits import MAX_ALLOWED, MAX_BAD_WORD, MAX_BAD_WORDS, MAX_BIASED

_OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "prompt_logprobs",
)
# The most entries of each list. Those that are longer are not copied, let alone checked one by one.
_MOST = {
    "stop": MAX_STOPS,
    "stop_token_ids": MAX_STOP_TOKENS,
    "logit_bias": MAX_BIASED,
    "allowed_token_ids": MAX_ALLOWED,
    "bad_words": MAX_BAD_WORDS,
    "bad_word_strings": MAX_BAD_WORDS,
}
_REASONS = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
_PROMPT_PARAMS = {
    "prompt": "prompt",
    "prompt_tokens": "prompt_tokens",
    "chat": "chat.messages",
}


def _sampling_from_pb(sampling: pb.Sampling, *, prompt_only: bool) -> SamplingOptions:
    """The options; every list is bounded before it is copied."""
    for name, most in _MOST.items():
        if len(getattr(sampling, name)) > most:
            raise InvalidRequest(f"{name} takes at most {most} entries", param=name)
    for word in sampling.bad_words:
        if len(word.ids) > MAX_BAD_WORD:
            raise InvalidRequest(f"bad_words must have 1 to {MAX_BAD_WORD} tokens each", param="bad_words")
    given = {field.name: value for field, value in sampling.ListFields() if field.name in _OPTIONAL}
    if prompt_only:
        given["max_tokens"] = 1
    return SamplingOptions(
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        logit_bias=tuple(sampling.logit_bias.items()),
        allowed_token_ids=tuple(sampling.allowed_token_ids),
        bad_words=tuple(tuple(word.ids) for word in sampling.bad_words),
        bad_word_strings=tuple(sampling.bad_word_strings),
        **given,
    )


def _asks_prompt_only(request: pb.GenerateRequest) -> bool:
    """Whether max_tokens is 0, which only what tells the prompt may ask for. Raises InvalidRequest for any other, and for min_tokens."""
    sampling = request.sampling
    if not sampling.HasField("max_tokens") or sampling.max_tokens:
        return False
    if not request.echo and not sampling.HasField("prompt_logprobs"):
        raise InvalidRequest("max_tokens must be at least 1 without echo", param="max_tokens")
    if sampling.min_tokens:
        raise InvalidRequest("min_tokens must not be larger than max_tokens", param="min_tokens")
    return True


def _chat_from_pb(chat: pb.Chat, param: str) -> ChatPrompt:
    check_count(chat.messages, param)
    messages = tuple(turn(m.role, m.content, m.name, f"{param}[{i}]") for i, m in enumerate(chat.messages))
    header = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    return ChatPrompt(messages=messages, add_generation_prompt=header)


def _tokens_from_pb(tokens: pb.TokenIds) -> TokenPrompt:
    check_tokens(tokens.ids, "prompt_tokens", MAX_PROMPT_TOKENS)
    return TokenPrompt(tokens=list(tokens.ids))


def _prompt_from_pb(request: pb.GenerateRequest) -> Prompt:
    match request.WhichOneof("input"):
        case "prompt":
            return TextPrompt(text=request.prompt)
        case "prompt_tokens":
            return _tokens_from_pb(request.prompt_tokens)
        case "chat":
            return _chat_from_pb(request.chat, "chat.messages")
    raise InvalidRequest("one of prompt, prompt_tokens and chat must be set", param="prompt")


def request_from_pb(
    request: pb.GenerateRequest,
    *,
    caller: Caller = OPEN_CALLER,
    timeout: float | None = None,
    traceparent: str = "",
) -> GenerateRequest:
    """The validated request. Raises InvalidRequest naming the proto's field."""
    prompt, prompt_only = _prompt_from_pb(request), _asks_prompt_only(request)
    return GenerateRequest(
        model=request.model,
        prompt=prompt,
        request_id=request.request_id,
        sampling=_sampling_from_pb(request.sampling, prompt_only=prompt_only),
        n=request.n if request.HasField("n") else 1,
        timeout=timeout,
        traceparent=traceparent,
        prompt_param=_PROMPT_PARAMS[request.WhichOneof("input") or "prompt"],
        echo=request.echo,
        truncate_prompt_tokens=request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
        prompt_only=prompt_only,
        caller=caller,
        cache_salt=request.cache_salt,
        priority=request.priority if request.HasField("priority") else None,
        prompt_cache_key=request.prompt_cache_key,
    )


def tokenize_prompt_from_pb(request: pb.TokenizeRequest) -> Prompt:
    """What to tokenize. Raises InvalidRequest where nothing is set, and naming the field at fault."""
    match request.WhichOneof("input"):
        case "text":
            return TextPrompt(text=request.text)
        case "chat":
            return checked_chat(_chat_from_pb(request.chat, "chat.messages"), "chat.messages")
    raise InvalidRequest("one of text and chat must be set", param="text")


def tokens_from_pb(request: pb.DetokenizeRequest) -> list[int]:
    """What to detokenize. Raises InvalidRequest."""
    check_tokens(request.tokens, "tokens", MAX_DETOKENIZED)
    return list(request.tokens)


def _token_to_pb(token: TokenText) -> pb.TokenLogprob:
    return pb.TokenLogprob(token=token.token, logprob=token.logprob, text=token.text)


def _logprobs_to_pb(row: Logprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        sampled=_token_to_pb(row.sampled),
        top=[_token_to_pb(token) for token in row.top],
    )


def _set_ended(chunk: pb.Chunk, ended: Ended) -> None:
    chunk.finish_reason = _REASONS[ended.reason]
    if ended.stop_string is not None:
        chunk.stop_string = ended.stop_string
    elif ended.stop_token is not None:
        chunk.stop_token = ended.stop_token


def piece_to_pb(piece: Piece, *, return_tokens: bool) -> pb.Chunk:
    """One piece of a choice; its token ids only where the caller asked for them."""
    tokens = piece.tokens if return_tokens else ()
    rows = [_logprobs_to_pb(row) for row in piece.logprobs]
    chunk = pb.Chunk(index=piece.index, text=piece.text, tokens=tokens, logprobs=rows)
    if piece.ended is not None:
        _set_ended(chunk, piece.ended)
    return chunk


def cancelled_to_pb(indices: Sequence[int]) -> list[pb.Chunk]:
    """The ends of choices that their caller cancelled."""
    return [pb.Chunk(index=index, finish_reason=pb.FINISH_REASON_CANCELLED) for index in indices]


def prompt_rows_to_pb(rows: Sequence[Logprobs | None]) -> list[pb.TokenLogprobs]:
    """One entry a token of the prompt; an empty one where there is no row."""
    return [pb.TokenLogprobs() if row is None else _logprobs_to_pb(row) for row in rows]


def usage_to_pb(usage: Usage) -> pb.Usage:
    """Token counts of a whole request."""
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def response_to_pb(generation: Generation, chunks: Sequence[pb.Chunk], *, first: bool) -> pb.GenerateResponse:
    """A response; the first one of a generation also tells its seed."""
    seed = generation.seed if first else None
    resumed = generation.resumed
    return pb.GenerateResponse(id=generation.id, model=generation.model, chunks=chunks, seed=seed, resumed=resumed)


def card_to_pb(card: ModelCard) -> pb.ModelCard:
    """A served model."""
    return pb.ModelCard(
        id=card.id,
        created=card.created,
        max_model_len=card.max_model_len,
        workers=card.workers,
        eos_token_ids=card.eos_token_ids,
        parent=card.parent,
    )
