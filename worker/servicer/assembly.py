"""Submits that come in parts: of the prompt, and of the given outputs of resumed choices. What would not fit is never gathered."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos import worker_pb2 as pb
from shared.errors import InvalidRequest
from shared.types import AbortReason


@dataclass(kw_only=True, slots=True, eq=False)
class Gathered:
    """Tokens of one list as they come; `missing` have not. `name` is the field that announced how many there are."""

    name: str
    missing: int
    tokens: list[int] = field(default_factory=list)


@dataclass(kw_only=True, slots=True, eq=False)
class Partial:
    """A Submit as it comes together. `outputs` are by handle; `ended` are the choices aborted meanwhile; `void` means answered."""

    submit: pb.Submit
    prompt: Gathered
    outputs: dict[int, Gathered]
    ended: dict[int, AbortReason] = field(default_factory=dict)
    void: bool = False

    @property
    def handles(self) -> set[int]:
        """Of its choices."""
        return {choice.handle for choice in self.submit.choices}

    @property
    def missing(self) -> int:
        """Tokens that have not come."""
        return self.prompt.missing + sum(output.missing for output in self.outputs.values())

    @property
    def longest(self) -> int:
        """Tokens of the prompt and of the longest given outputs, as they were announced."""
        return self.submit.prompt_len + max((given(choice) for choice in self.submit.choices), default=0)


def given(choice: pb.ChoiceSpec) -> int:
    """How many outputs a choice is given, in all."""
    return max(choice.output_len, len(choice.output_tokens))


class Assembly:
    """One stream's. Raises InvalidRequest where parts do not fit what was announced, or too many Submits wait for theirs."""

    def __init__(self, *, limit: int):
        self._limit = limit
        self._partials: dict[int, Partial] = {}

    def begin(self, submit: pb.Submit) -> Partial:
        """Kept until nothing of it is missing."""
        outputs = {
            choice.handle: Gathered(name="output_len", missing=given(choice))
            for choice in submit.choices
            if given(choice)
        }
        partial = Partial(submit=submit, prompt=Gathered(name="prompt_len", missing=submit.prompt_len), outputs=outputs)
        self._add(partial, partial.prompt, submit.prompt_tokens)
        for choice in submit.choices:
            if choice.output_tokens:
                self._add(partial, outputs[choice.handle], choice.output_tokens)
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
        self._add(partial, partial.prompt, part.prompt_tokens)
        if part.output_tokens:
            self._add(partial, self._output(partial, part.handle), part.output_tokens)
        if not partial.missing:
            del self._partials[part.seq]
        return partial

    def holding(self, handles: Sequence[int]) -> list[Partial]:
        """The Submits with one of these choices that are not whole and not void."""
        asked = set(handles)
        return [partial for partial in self._partials.values() if not partial.void and asked & partial.handles]

    def _output(self, partial: Partial, handle: int) -> Gathered:
        if handle not in partial.outputs:
            message = f"Submit {partial.submit.seq} announced no outputs of handle {handle}"
            raise InvalidRequest(message, param="handle")
        return partial.outputs[handle]

    def _add(self, partial: Partial, gathered: Gathered, tokens: Sequence[int]) -> None:
        if len(tokens) > gathered.missing:
            message = f"Submit {partial.submit.seq} brings more tokens than its {gathered.name}"
            raise InvalidRequest(message, param=gathered.name)
        gathered.missing -= len(tokens)
        if not partial.void:
            gathered.tokens.extend(tokens)
