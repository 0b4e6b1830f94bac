"""Submits whose prompt comes in parts. What would not fit the model is never gathered."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos import worker_pb2 as pb
from shared.errors import InvalidRequest
from shared.types import AbortReason


@dataclass(kw_only=True, slots=True, eq=False)
class Partial:
    """A Submit of which `missing` prompt tokens have not come. `ended` are the choices aborted meanwhile; `void` means answered."""

    submit: pb.Submit
    tokens: list[int]
    missing: int
    ended: dict[int, AbortReason] = field(default_factory=dict)
    void: bool = False

    @property
    def handles(self) -> set[int]:
        """Of its choices."""
        return {choice.handle for choice in self.submit.choices}


class Assembly:
    """One stream's. Raises InvalidRequest where parts do not fit what was announced, or too many Submits wait for theirs."""

    def __init__(self, *, limit: int):
        self._limit = limit
        self._partials: dict[int, Partial] = {}

    def begin(self, submit: pb.Submit) -> Partial:
        """Kept until nothing of it is missing."""
        partial = Partial(submit=submit, tokens=[], missing=submit.prompt_len)
        self._add(partial, submit.prompt_tokens)
        if partial.missing:
            if len(self._partials) >= self._limit:
                raise InvalidRequest(f"over {self._limit} Submits wait for their parts", param="prompt_len")
            self._partials[submit.seq] = partial
        return partial

    def part(self, part: pb.SubmitPart) -> Partial:
        """The next tokens of a Submit that has begun."""
        partial = self._partials.get(part.seq)
        if partial is None:
            raise InvalidRequest(f"a part of Submit {part.seq}, which waits for none", param="seq")
        self._add(partial, part.prompt_tokens)
        if not partial.missing:
            del self._partials[part.seq]
        return partial

    def holding(self, handles: Sequence[int]) -> list[Partial]:
        """The Submits with one of these choices that are not whole and not void."""
        asked = set(handles)
        return [partial for partial in self._partials.values() if not partial.void and asked & partial.handles]

    def _add(self, partial: Partial, tokens: Sequence[int]) -> None:
        if len(tokens) > partial.missing:
            seq, length = partial.submit.seq, partial.submit.prompt_len
            raise InvalidRequest(f"Submit {seq} brings more tokens than its prompt_len of {length}", param="prompt_len")
        partial.missing -= len(tokens)
        if not partial.void:
            partial.tokens.extend(tokens)
