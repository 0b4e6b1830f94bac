"""protos/inference.proto to and from the router's request types."""

from collections.abc import Sequence

from protos import inference_pb2 as pb
from router.request import (
    ChatPrompt,
    Ended,
    GenerateRequest,
    Logprobs,
    Message,
    Piece,
    Prompt,
    SamplingOptions,
    TextPrompt,
    TokenPrompt,
    TokenText,
    Usage,
)
from router.service import Generation, ModelCard
from shared.errors import InvalidRequest

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
)
_REASONS = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}
_PROMPT_PARAMS = {
    "prompt": "prompt",
    "prompt_tokens": "prompt_tokens",
    "chat": "chat.messages",
}


def _sampling_from_pb(sampling: pb.Sampling) -> SamplingOptions:
    given = {field.name: value for field, value in sampling.ListFields() if field.name in _OPTIONAL}
    return SamplingOptions(
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        **given,
    )


def _chat_from_pb(chat: pb.Chat) -> ChatPrompt:
    messages = tuple(Message(role=m.role, content=m.content, name=m.name) for m in chat.messages)
    header = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    return ChatPrompt(messages=messages, add_generation_prompt=header)


def _prompt_from_pb(request: pb.GenerateRequest) -> Prompt:
    match request.WhichOneof("input"):
        case "prompt":
            return TextPrompt(text=request.prompt)
        case "prompt_tokens":
            return TokenPrompt(tokens=list(request.prompt_tokens.ids))
        case "chat":
            return _chat_from_pb(request.chat)
    raise InvalidRequest("one of prompt, prompt_tokens and chat must be set", param="prompt")


def request_from_pb(
    request: pb.GenerateRequest, *, timeout: float | None = None, traceparent: str = ""
) -> GenerateRequest:
    """The validated request. Raises InvalidRequest naming the proto's field."""
    return GenerateRequest(
        model=request.model,
        prompt=_prompt_from_pb(request),
        request_id=request.request_id,
        sampling=_sampling_from_pb(request.sampling),
        n=request.n if request.HasField("n") else 1,
        timeout=timeout,
        traceparent=traceparent,
        prompt_param=_PROMPT_PARAMS[request.WhichOneof("input") or "prompt"],
    )


def tokenize_prompt_from_pb(request: pb.TokenizeRequest) -> Prompt:
    """What to tokenize. Raises InvalidRequest where nothing is set."""
    match request.WhichOneof("input"):
        case "text":
            return TextPrompt(text=request.text)
        case "chat":
            return _chat_from_pb(request.chat)
    raise InvalidRequest("one of text and chat must be set", param="text")


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
    return pb.GenerateResponse(id=generation.id, model=generation.model, chunks=chunks, seed=seed)


def card_to_pb(card: ModelCard) -> pb.ModelCard:
    """A served model."""
    return pb.ModelCard(
        id=card.id,
        created=card.created,
        max_model_len=card.max_model_len,
        workers=card.workers,
        eos_token_ids=card.eos_token_ids,
    )
