"""One change at every worker of a model, whole or not at all.

A load has two parts. First every worker reads and checks the version, while the name means what it did: where one refuses, or two find
different versions, nothing has changed. Then each is told to use it, which takes no reading any more. Should one refuse even then, those
that had done it go back to what they had. A worker that is lost on the way holds up nobody: when it comes again, it is told.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from router.fleet.adapters import WorkerGone, load_adapter, pin_adapter, stage_adapter, unload_adapter
from router.fleet.link import WorkerLink
from shared.errors import InvalidRequest, NotFound, OctavoError
from shared.types import AdapterInfo

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

Had = Mapping[WorkerLink, AdapterInfo | None]  # what a name was at each worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A load. `source` empty: the adapter directory's."""

    name: str
    source: str
    replace: bool
    pin: bool


async def stage(links: Sequence[WorkerLink], change: Change) -> bytes:
    """The digest of what all of them have read. Raises what one refused it with, InvalidRequest where they have read different versions,
    WorkerGone where all are lost; then nothing has changed."""

    async def one(link: WorkerLink) -> AdapterInfo:
        return await stage_adapter(link, change.name, change.source, replace=change.replace, pin=change.pin)

    results = await _at_each(links, one)
    digests = {info.digest for info in _done(results).values()}
    if len(digests) > 1:
        raise InvalidRequest(
            f"the workers' sources of {change.name!r} hold {len(digests)} different versions",
            param="source",
            code="adapter_versions_differ",
        )
    return digests.pop()


async def commit(links: Sequence[WorkerLink], change: Change, digest: bytes, had: Had) -> list[AdapterInfo]:
    """Have the name mean the staged version. Raises what one refused it with; then those that had done it have what they `had`."""

    async def one(link: WorkerLink) -> AdapterInfo:
        source, replace, pin = change.source, change.replace, change.pin
        return await load_adapter(link, change.name, source, replace=replace, pin=pin, digest=digest)

    results = await _at_each(links, one)
    try:
        return list(_done(results).values())
    except OctavoError:
        await _restore([link for link, result in results.items() if isinstance(result, AdapterInfo)], change.name, had)
        raise


async def pin(links: Sequence[WorkerLink], name: str, pinned: bool, had: Had) -> list[AdapterInfo]:
    """Pin it, or not any more. Raises what one refused it with; then pins are what they were."""
    results = await _at_each(links, lambda link: pin_adapter(link, name, pinned))
    try:
        return list(_done(results).values())
    except OctavoError:
        done = [link for link, result in results.items() if isinstance(result, AdapterInfo)]
        await _at_each(done, lambda link: pin_adapter(link, name, _was_pinned(had[link])))
        raise


async def unload(links: Iterable[WorkerLink], name: str) -> int:
    """How many had it and do not any more. Raises what a worker that is there says besides that it has none."""
    results = await _at_each(links, lambda link: unload_adapter(link, name))
    for result in results.values():
        if isinstance(result, OctavoError) and not isinstance(result, NotFound | WorkerGone):
            raise result
    return sum(result is None for result in results.values())


async def _at_each(
    links: Iterable[WorkerLink], call: Callable[[WorkerLink], Awaitable[_T]]
) -> dict[WorkerLink, _T | OctavoError]:
    async def guarded(link: WorkerLink) -> _T | OctavoError:
        try:
            return await call(link)
        except OctavoError as error:
            return error

    every = list(links)
    return dict(zip(every, await asyncio.gather(*map(guarded, every)), strict=True))


def _done(results: Mapping[WorkerLink, AdapterInfo | OctavoError]) -> dict[WorkerLink, AdapterInfo]:
    """Who did it. Raises the first refusal, telling how many refused; or WorkerGone where all are lost."""
    errors = [result for result in results.values() if isinstance(result, OctavoError)]
    refusals = [error for error in errors if not isinstance(error, WorkerGone)]
    if refusals and len(refusals) < len(results):
        raise _of_some(refusals[0], len(refusals), len(results))
    if refusals or len(errors) == len(results):
        raise (refusals or errors)[0]
    return {link: result for link, result in results.items() if isinstance(result, AdapterInfo)}


def _of_some(error: OctavoError, count: int, every: int) -> OctavoError:
    message = f"{error.message} ({count} of {every} workers refused it; none of them uses it)"
    return type(error)(message, param=error.param, retry_after=error.retry_after, code=error.code)


def _was_pinned(info: AdapterInfo | None) -> bool:
    return info is not None and info.pinned


async def _restore(links: Sequence[WorkerLink], name: str, had: Had) -> None:
    results = await _at_each(links, lambda link: _put_back(link, name, had[link]))
    for link, result in results.items():
        if isinstance(result, OctavoError):
            _LOG.warning("adapter %s at %s is unloaded: %s", name, link.target, result.message)
    await _at_each(
        (link for link, result in results.items() if result is not None), lambda link: unload_adapter(link, name)
    )


async def _put_back(link: WorkerLink, name: str, info: AdapterInfo | None) -> None:
    if info is None:
        await unload_adapter(link, name)
        return
    source = "" if info.listed else info.source
    await load_adapter(link, name, source, replace=True, digest=info.digest)
    await pin_adapter(link, name, info.pinned)
