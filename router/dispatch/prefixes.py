"""Public prefixes, as prompts of a pool begin with them: found by their tokens, however a prompt was given.

A prefix counts where a prompt begins with all of its whole blocks. One that begins with some of them alone shares none: that they are
cached would tell how another tenant's own prompt goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from router.fleet.fleet import Pool, PoolKey
from router.request import ChatPrompt, Message, Prompt, TextPrompt
from router.tenancy.records import PrefixRecord, matches
from router.text.threads import TextThreads, contained
from router.text.tokenizer import ModelText
from shared.errors import OctavoError
from shared.hashing import BLOCK_SIZE

_LOG = logging.getLogger(__name__)

_ENDS = ("0", " a", "\n\n", "Z")  # what may follow: tokens that depend on it are none of the prefix's

Tokens = tuple[int, ...]


def _examples(record: PrefixRecord) -> list[Prompt]:
    """Prompts that begin with it and have nothing else in common."""
    if record.text:
        return [TextPrompt(text=record.text + end) for end in _ENDS]
    system = Message(role="system", content=record.system)
    return [ChatPrompt(messages=(system, Message(role="user", content=end))) for end in _ENDS]


def prefix_tokens(text: ModelText, record: PrefixRecord) -> Tokens:
    """The whole blocks of tokens with which every prompt begins that begins so. Raises InvalidRequest where the model has no template."""
    encoded = [text.encode(example) for example in _examples(record)]
    same = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*encoded)))  # noqa: B905 - as far as all go
    return tuple(encoded[0][: same // BLOCK_SIZE * BLOCK_SIZE])


@dataclass(frozen=True, slots=True)
class Table:
    """Prefixes of a pool by their first block, the longest first."""

    by_first: Mapping[Tokens, Sequence[Tokens]]

    def length(self, prompt: Sequence[int]) -> int:
        """Tokens of the longest that `prompt` begins with; 0 where there is none."""
        found = self.by_first.get(tuple(prompt[:BLOCK_SIZE]), ())
        return next((len(prefix) for prefix in found if tuple(prompt[: len(prefix)]) == prefix), 0)


def table(prefixes: Sequence[Tokens]) -> Table:
    """Of these; empty ones are left out."""
    by_first: dict[Tokens, list[Tokens]] = {}
    for prefix in sorted(filter(None, prefixes), key=len, reverse=True):
        by_first.setdefault(prefix[:BLOCK_SIZE], []).append(prefix)
    return Table(by_first)


class PublicPrefixes:
    """`records` gives the operator's, as they are now. A pool's table is made by the first request after a change."""

    def __init__(self, records: Callable[[], Sequence[PrefixRecord]], threads: TextThreads):
        self._records = records
        self._threads = threads
        self._tables: dict[PoolKey, tuple[Sequence[PrefixRecord], asyncio.Task[Table]]] = {}

    async def length(self, pool: Pool, prompt: Sequence[int]) -> int:
        """Tokens, whole blocks, of the public prefix that `prompt` begins with; 0 where it begins with none."""
        records = self._records()
        if not records:
            return 0
        known = self._tables.get(pool.key)
        if known is None or known[0] is not records:
            same = known is not None and known[0] == records  # something else of the store has changed
            making = known[1] if known and same else asyncio.create_task(self._made(pool, records))
            known = self._tables[pool.key] = (records, making)
        return (await asyncio.shield(known[1])).length(prompt)

    async def _made(self, pool: Pool, records: Sequence[PrefixRecord]) -> Table:
        meant = [record for record in records if matches(pool.key.model, record.models)]
        return table([await self._tokens(pool, record) for record in meant])

    async def _tokens(self, pool: Pool, record: PrefixRecord) -> Tokens:
        try:
            found = await self._threads.run(contained(lambda: prefix_tokens(pool.text, record)))
        except OctavoError as error:
            _LOG.warning("the public prefix %s is none of %s: %s", record.name, pool.key.model, error.message)
            return ()
        if not found:
            _LOG.warning("the public prefix %s has no whole block of %s's tokens", record.name, pool.key.model)
        return found
