"""A generation whose choices begin with their prompt: its text (echo), its log-probabilities, or nothing else (max_tokens 0)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from router.request import Ended, GenerateRequest, Logprobs, Piece, PromptRows, TextPrompt, Usage
from router.service import Generation
from router.tenancy.rates import Rates

Decode = Callable[[Sequence[int]], Coroutine[Any, Any, str]]


def tells_prompt(request: GenerateRequest) -> bool:
    """Whether its choices begin with anything of the prompt."""
    return request.echo or request.prompt_only or request.sampling.prompt_logprobs is not None


class Echo:
    """Implements router.service.Generation around another one. `decode` gives the text of tokens of the generation's model."""

    def __init__(self, generation: Generation, request: GenerateRequest, decode: Decode):
        self._generation = generation
        self._request = request
        self._decode = decode

    @property
    def id(self) -> str:
        """See Generation."""
        return self._generation.id

    @property
    def model(self) -> str:
        """See Generation."""
        return self._generation.model

    @property
    def base(self) -> str:
        """See Generation."""
        return self._generation.base

    @property
    def seed(self) -> int:
        """See Generation."""
        return self._generation.seed

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """See Generation."""
        return self._generation.prompt_tokens

    @property
    def prompt_logprobs(self) -> Sequence[Logprobs | None]:
        """See Generation."""
        return self._generation.prompt_logprobs

    @property
    def usage(self) -> Usage:
        """See Generation."""
        usage = self._generation.usage
        return replace(usage, completion_tokens=0) if self._request.prompt_only else usage

    @property
    def rates(self) -> Rates | None:
        """See Generation."""
        return self._generation.rates

    @property
    def resumed(self) -> str:
        """See Generation."""
        return self._generation.resumed

    async def aclose(self) -> None:
        """See Generation."""
        await self._generation.aclose()

    async def __aiter__(self) -> AsyncIterator[tuple[Piece, ...]]:
        """The prompt goes before the first token, because its log-probabilities are whole from then on."""
        waiting: tuple[Piece, ...] = ()
        begun = False
        async for pieces in self._generation:
            if begun:
                yield pieces
                continue
            waiting += pieces
            if not self._request.prompt_only and any(piece.tokens for piece in waiting):
                begun = True
                yield await self._prompt() + waiting
        if self._request.prompt_only:
            yield tuple(replace(piece, ended=Ended(reason="length")) for piece in await self._prompt())
        elif not begun:
            yield await self._prompt() + waiting

    async def _prompt(self) -> tuple[Piece, ...]:
        echo, rows = await self._text(), await self._rows()
        return tuple(Piece(index=index, text=echo, echo=echo, prompt=rows) for index in range(self._request.n))

    async def _text(self) -> str:
        """The prompt as it was given where it was text and is whole; else as its tokens are spelled."""
        prompt = self._request.prompt
        if not self._request.echo:
            return ""
        if isinstance(prompt, TextPrompt) and self._request.truncate_prompt_tokens is None:
            return prompt.text
        return await self._decode(self._generation.prompt_tokens)

    async def _rows(self) -> PromptRows | None:
        """In a thread: a long prompt with many alternatives takes longer than the event loop may stand still."""
        sampling = self._request.sampling
        if sampling.prompt_logprobs is None and (sampling.logprobs is None or not self._request.echo):
            return None
        first = await self._decode(self._generation.prompt_tokens[:1])
        rows = await asyncio.to_thread(lambda: self._generation.prompt_logprobs)
        return PromptRows(first=first, rows=tuple(row for row in rows if row is not None))
