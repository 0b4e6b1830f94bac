"""The internal stream's messages to and from `shared.types`. What arrives is trusted in shape, and checked in meaning by its taker.

Everything that could outgrow a frame (`rpc.FRAME_LIMIT`) is written as several: prompts, step batches, KV hashes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from protos import worker_pb2 as pb
from shared.hashing import HASH_BYTES
from shared.rpc import FRAME_LIMIT
from shared.types import (
    AbortReason,
    Choice,
    Finished,
    FinishReason,
    KvDelta,
    KvSnapshot,
    Load,
    PromptLogprobs,
    RejectCode,
    Rejected,
    StepDeltas,
    Tenant,
    TokenDelta,
    TokenLogprobs,
    TokenRequest,
    WorkerInfo,
)
from shared.wire.adapters import adapter_load_from_pb, adapter_load_to_pb
from shared.wire.sampling import sampling_from_pb, sampling_to_pb

PROTOCOL = 1
SUBMIT_TOKENS = 8_192  # of a prompt, or of given outputs, a frame
_TOKEN_BYTES = 5  # at most
_ENVELOPE = 16  # bytes of tags and lengths around a Submit and its prompt, at most
_CHOICE_TOKENS = 2  # of room that the tags and lengths around a choice's tokens take
DELTA_HASHES = 1_024  # a frame
SNAPSHOT_HASHES = 4_000  # a frame: 4,096 of 16 bytes would leave no room for the rest of it
STEP_TOKENS = 1_024  # a frame, logprobs of 20 alternatives taken apart
STEP_LOGPROBS = 200  # rows a frame: up to 21 * 9 bytes each


def _finish_to_pb(reason: FinishReason) -> pb.WorkerFinishReason.ValueType:
    return pb.WorkerFinishReason.Value(f"WORKER_FINISH_REASON_{reason.name}")


def _finish_from_pb(reason: pb.WorkerFinishReason.ValueType) -> FinishReason:
    if reason not in _FINISHES:
        raise ValueError(f"an unknown reason {reason} of an end")
    return _FINISHES[reason]


_FINISHES = {_finish_to_pb(reason): reason for reason in FinishReason}


def submit_to_pb(request: TokenRequest) -> Iterator[pb.Up]:
    """A Submit with as much of the prompt as fits beside the rest of it, then a SubmitPart for each further SUBMIT_TOKENS.

    Given outputs go in the Submit where all of them fit there, and in parts of their own where they do not.
    """
    submit = _submit_without_tokens(request)
    room = (FRAME_LIMIT - submit.ByteSize() - _ENVELOPE) // _TOKEN_BYTES
    given = sum(len(choice.output_tokens) + _CHOICE_TOKENS for choice in request.choices if choice.output_tokens)
    apart = given > room
    if not apart:
        room -= given
        for spec, choice in zip(submit.choices, request.choices, strict=True):
            spec.output_tokens.extend(choice.output_tokens)
    first = min(SUBMIT_TOKENS, max(0, room))
    submit.prompt_tokens.extend(request.prompt_tokens[:first])
    yield pb.Up(submit=submit)
    yield from _parts(request, first, outputs=apart)


def _parts(request: TokenRequest, first: int, *, outputs: bool) -> Iterator[pb.Up]:
    """The prompt's tokens from position `first` on; all given outputs where they are wanted."""
    tokens = request.prompt_tokens
    for start in range(first, len(tokens), SUBMIT_TOKENS):
        yield pb.Up(submit_part=pb.SubmitPart(seq=request.seq, prompt_tokens=tokens[start : start + SUBMIT_TOKENS]))
    for choice in request.choices if outputs else ():
        for start in range(0, len(choice.output_tokens), SUBMIT_TOKENS):
            part = choice.output_tokens[start : start + SUBMIT_TOKENS]
            yield pb.Up(submit_part=pb.SubmitPart(seq=request.seq, handle=choice.handle, output_tokens=part))


def _tenant_to_pb(tenant: Tenant) -> pb.TenantSpec:
    return pb.TenantSpec(
        id=tenant.id,
        weight=tenant.weight,
        salt=tenant.salt,
        priority=tenant.top_class,
        salt_from=tenant.salt_from,
    )


def _tenant_from_pb(tenant: pb.TenantSpec) -> Tenant:
    return Tenant(
        id=tenant.id,
        weight=tenant.weight,
        salt=tenant.salt,
        top_class=tenant.priority,
        salt_from=tenant.salt_from,
    )


def _submit_without_tokens(request: TokenRequest) -> pb.Submit:
    return pb.Submit(
        seq=request.seq,
        request_id=request.request_id,
        tenant=_tenant_to_pb(request.tenant),
        prompt_len=len(request.prompt_tokens),
        choices=[
            pb.ChoiceSpec(handle=c.handle, index=c.index, output_len=len(c.output_tokens)) for c in request.choices
        ],
        sampling=sampling_to_pb(request.sampling),
        adapter_digest=request.adapter_digest,
        adapter_name=request.adapter_name,
        numerics_id=request.numerics_id,
        resumed=request.resumed,
        remaining_ms=request.remaining_ms,
        traceparent=request.traceparent,
    )


def submit_from_pb(submit: pb.Submit, tokens: Sequence[int], outputs: Mapping[int, Sequence[int]]) -> TokenRequest:
    """The request of `submit`, with all its prompt's tokens and, by handle, all given outputs."""
    choices = (
        Choice(handle=c.handle, index=c.index, output_tokens=tuple(outputs.get(c.handle, ()))) for c in submit.choices
    )
    return TokenRequest(
        seq=submit.seq,
        request_id=submit.request_id,
        tenant=_tenant_from_pb(submit.tenant),
        prompt_tokens=tokens,
        choices=tuple(choices),
        sampling=sampling_from_pb(submit.sampling),
        adapter_digest=submit.adapter_digest,
        adapter_name=submit.adapter_name,
        numerics_id=submit.numerics_id,
        resumed=submit.resumed,
        remaining_ms=submit.remaining_ms if submit.HasField("remaining_ms") else None,
        traceparent=submit.traceparent,
    )


_REASONS = {pb.AbortReason.Value(f"ABORT_REASON_{reason.name}"): reason for reason in AbortReason}


def abort_to_pb(handles: Sequence[int], reason: AbortReason) -> pb.Up:
    """An Abort of these handles."""
    return pb.Up(abort=pb.Abort(handles=handles, reason=pb.AbortReason.Value(f"ABORT_REASON_{reason.name}")))


def abort_from_pb(abort: pb.Abort) -> tuple[tuple[int, ...], AbortReason]:
    """The handles, and why; an unnamed reason counts as the client's."""
    return tuple(abort.handles), _REASONS.get(abort.reason, AbortReason.CLIENT)


def _rows(delta: TokenDelta) -> int:
    return len(delta.logprobs) + (len(delta.prompt.rows) if delta.prompt else 0)


def _split(delta: TokenDelta) -> Iterator[TokenDelta]:
    """The delta; the prompt's rows ahead of it in pieces, where they are too many for a frame."""
    if delta.prompt is None or _rows(delta) <= STEP_LOGPROBS:
        yield delta
        return
    first, rows = delta.prompt.first, delta.prompt.rows
    for start in range(0, len(rows), STEP_LOGPROBS):
        piece = PromptLogprobs(first=first + start, rows=rows[start : start + STEP_LOGPROBS])
        yield TokenDelta(handle=delta.handle, tokens=(), prompt=piece)
    if delta.tokens:
        yield replace(delta, prompt=None)


def _frames_of(deltas: Iterable[TokenDelta]) -> Iterator[list[TokenDelta]]:
    """`deltas` in order, in groups that fit a frame and name a handle once each. One step gives a handle few tokens, so that none is ever
    too large alone."""
    group: dict[int, TokenDelta] = {}
    tokens = rows = 0
    for delta in deltas:
        full = tokens + len(delta.tokens) > STEP_TOKENS or rows + _rows(delta) > STEP_LOGPROBS
        if group and (full or delta.handle in group):
            yield list(group.values())
            group, tokens, rows = {}, 0, 0
        group[delta.handle] = delta
        tokens, rows = tokens + len(delta.tokens), rows + _rows(delta)
    yield list(group.values())


def _prompt_to_pb(handle: int, prompt: PromptLogprobs) -> pb.PromptLogprobs:
    flat = [pair for row in prompt.rows for pair in row.top]
    return pb.PromptLogprobs(
        handle=handle,
        first=prompt.first,
        given=[row.sampled for row in prompt.rows],
        width=max(len(row.top) for row in prompt.rows),
        top_tokens=[token for token, _ in flat],
        top_logprobs=[value for _, value in flat],
    )


def _logprobs_to_pb(delta: TokenDelta) -> pb.StepLogprobs:
    width = max(len(row.top) for row in delta.logprobs)
    flat = [pair for row in delta.logprobs for pair in row.top]
    return pb.StepLogprobs(
        handle=delta.handle,
        sampled=[row.sampled for row in delta.logprobs],
        width=width,
        top_tokens=[token for token, _ in flat],
        top_logprobs=[value for _, value in flat],
    )


def step_to_pb(step: StepDeltas) -> Iterator[pb.Down]:
    """One StepBatch, or more where it would not fit a frame."""
    for group in _frames_of(piece for delta in step.deltas for piece in _split(delta)):
        batch = pb.StepBatch(
            step_seq=step.step_seq,
            acked_seq=step.acked_seq,
            handles=[d.handle for d in group],
            counts=[len(d.tokens) for d in group],
            tokens=[token for d in group for token in d.tokens],
            logprobs=[_logprobs_to_pb(d) for d in group if d.logprobs],
            prompt_logprobs=[_prompt_to_pb(d.handle, d.prompt) for d in group if d.prompt],
        )
        yield pb.Down(step_batch=batch)


def _table(
    values: Sequence[float], width: int, tokens: Sequence[int], logprobs: Sequence[float]
) -> tuple[TokenLogprobs, ...]:
    if len(tokens) != len(values) * width:
        raise ValueError(f"{len(tokens)} alternatives, where {len(values)} rows have {width} each")
    if not all(value < math.inf for value in chain(values, logprobs)):  # NaN is below nothing
        raise ValueError("log-probabilities that are none")
    pairs = list(zip(tokens, logprobs, strict=True))
    return tuple(
        TokenLogprobs(sampled=value, top=tuple(pairs[i * width : (i + 1) * width])) for i, value in enumerate(values)
    )


def _logprobs_from_pb(rows: pb.StepLogprobs) -> tuple[TokenLogprobs, ...]:
    return _table(rows.sampled, rows.width, rows.top_tokens, rows.top_logprobs)


def _prompt_from_pb(prompt: pb.PromptLogprobs) -> PromptLogprobs:
    if prompt.first < 1:
        raise ValueError("log-probabilities of a prompt's first token, which follows nothing")
    rows = _table(prompt.given, prompt.width, prompt.top_tokens, prompt.top_logprobs)
    return PromptLogprobs(first=prompt.first, rows=rows)


def step_from_pb(batch: pb.StepBatch) -> StepDeltas:
    """The batch's columns, choice by choice."""
    logprobs = {rows.handle: _logprobs_from_pb(rows) for rows in batch.logprobs}
    prompts = {prompt.handle: _prompt_from_pb(prompt) for prompt in batch.prompt_logprobs}
    deltas, start = [], 0
    for handle, count in zip(batch.handles, batch.counts, strict=True):
        tokens = tuple(batch.tokens[start : start + count])
        rows, prompt = logprobs.get(handle, ()), prompts.get(handle)
        if len(tokens) != count:
            raise ValueError(f"{count} tokens announced, {len(tokens)} there")
        deltas.append(TokenDelta(handle=handle, tokens=tokens, logprobs=rows, prompt=prompt))
        start += count
    if start != len(batch.tokens):
        raise ValueError(f"{len(batch.tokens)} tokens, of which {start} are some choice's")
    return StepDeltas(step_seq=batch.step_seq, acked_seq=batch.acked_seq, deltas=tuple(deltas))


def finish_to_pb(finished: Finished) -> pb.Down:
    """A Finish."""
    finish = pb.Finish(
        handle=finished.handle,
        reason=_finish_to_pb(finished.reason),
        prompt_tokens=finished.prompt_tokens,
        output_tokens=finished.output_tokens,
        cached_tokens=finished.cached_tokens,
        stop_token=finished.stop_token,
        message=finished.message,
        preemptions=finished.preemptions,
        param=finished.param,
    )
    return pb.Down(finish=finish)


def finish_from_pb(finish: pb.Finish) -> Finished:
    """A choice's end."""
    return Finished(
        handle=finish.handle,
        reason=_finish_from_pb(finish.reason),
        prompt_tokens=finish.prompt_tokens,
        output_tokens=finish.output_tokens,
        cached_tokens=finish.cached_tokens,
        stop_token=finish.stop_token if finish.HasField("stop_token") else None,
        message=finish.message,
        preemptions=finish.preemptions,
        param=finish.param,
    )


def reject_to_pb(rejected: Rejected) -> pb.Down:
    """A Reject."""
    reject = pb.Reject(
        seq=rejected.seq,
        code=pb.RejectCode.Value(f"REJECT_CODE_{rejected.code.name}"),
        message=rejected.message,
        param=rejected.param,
        retry_after_ms=rejected.retry_after_ms,
    )
    return pb.Down(reject=reject)


_REJECTS = {pb.RejectCode.Value(f"REJECT_CODE_{code.name}"): code for code in RejectCode}


def reject_from_pb(reject: pb.Reject) -> Rejected:
    """Why a request was not taken."""
    if reject.code not in _REJECTS:
        raise ValueError(f"an unknown code {reject.code} of a Reject")
    return Rejected(
        seq=reject.seq,
        code=_REJECTS[reject.code],
        message=reject.message,
        param=reject.param,
        retry_after_ms=reject.retry_after_ms if reject.HasField("retry_after_ms") else None,
    )


def load_to_pb(load: Load) -> pb.Down:
    """A Load; its fields carry the same names on both sides."""
    fields = {name: getattr(load, name) for name in Load.__slots__}
    return pb.Down(load=pb.Load(**{**fields, "adapters": list(map(adapter_load_to_pb, load.adapters))}))


def load_from_pb(load: pb.Load) -> Load:
    """A worker's account of itself."""
    fields = {name: getattr(load, name) for name in Load.__slots__}
    return Load(**{**fields, "adapters": tuple(map(adapter_load_from_pb, load.adapters))})


def info_to_pb(info: WorkerInfo) -> pb.WorkerInfo:
    """A WorkerInfo; its fields carry the same names on both sides."""
    return pb.WorkerInfo(**{name: getattr(info, name) for name in WorkerInfo.__slots__})


def info_from_pb(info: pb.WorkerInfo) -> WorkerInfo:
    """What a worker is."""
    fields = {name: getattr(info, name) for name in WorkerInfo.__slots__}
    return WorkerInfo(**{**fields, "eos_token_ids": tuple(info.eos_token_ids)})


def _hashes(packed: bytes) -> tuple[bytes, ...]:
    if len(packed) % HASH_BYTES:
        raise ValueError(f"{len(packed)} bytes are no hashes of {HASH_BYTES}")
    return tuple(packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES))


def kv_delta_to_pb(delta: KvDelta) -> pb.Down:
    """One frame: the caller keeps added and removed within DELTA_HASHES together."""
    added, removed = b"".join(delta.added), b"".join(delta.removed)
    return pb.Down(kv_delta=pb.KvDelta(epoch=delta.epoch, sequence=delta.sequence, added=added, removed=removed))


def kv_delta_from_pb(delta: pb.KvDelta) -> KvDelta:
    """Hashes that appeared and went."""
    added, removed = _hashes(delta.added), _hashes(delta.removed)
    return KvDelta(epoch=delta.epoch, sequence=delta.sequence, added=added, removed=removed)


def kv_snapshot_to_pb(piece: KvSnapshot) -> pb.Down:
    """One frame: the caller keeps the hashes within SNAPSHOT_HASHES."""
    hashes = b"".join(piece.hashes)
    snapshot = pb.KvSnapshot(epoch=piece.epoch, sequence=piece.sequence, hashes=hashes, last=piece.last)
    return pb.Down(kv_snapshot=snapshot)


def kv_snapshot_from_pb(piece: pb.KvSnapshot) -> KvSnapshot:
    """One piece of a whole view."""
    return KvSnapshot(epoch=piece.epoch, sequence=piece.sequence, hashes=_hashes(piece.hashes), last=piece.last)
