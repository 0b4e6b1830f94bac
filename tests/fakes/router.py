"""A router's inside over real streams, with a clock that the test moves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from router.assemble import start_service
from router.dispatch import RouterService
from router.dispatch.settings import DispatchSettings
from router.fleet.discovery import Where
from router.fleet.settings import LinkSettings
from router.request import GenerateRequest, Piece, SamplingOptions, TokenPrompt
from router.service import Generation
from router.tenancy.caller import Caller
from tests.fakes.clock import FakeClock
from tests.fakes.scripted_worker import ScriptedWorker, until

QUICK = LinkSettings(tick=0.005, backoff_first=0.01, backoff_most=0.05, stall_after=1e9)


@dataclass(kw_only=True)
class Router:
    """A service under test."""

    service: RouterService
    clock: FakeClock
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 where there is none yet."""
        return self.registry.get_sample_value(f"octavo_router_{name}", labels) or 0.0

    async def ready(self, workers: int = 1) -> None:
        """Wait until so many workers serve and have reported."""
        await until(lambda: self.metric("workers", state="ready") >= workers and self.service.ready(), "workers")


@asynccontextmanager
async def running_router(
    *targets: str | ScriptedWorker | Where, tmp_path: Path, link: LinkSettings = QUICK, **dispatch: Any
) -> AsyncIterator[Router]:
    """A router over these workers, ready for none in particular. Where nobody can take what a worker lost, it fails at once."""
    clock, registry = FakeClock(), CollectorRegistry()
    service = await start_service(
        _places(targets),
        registry=registry,
        link=link,
        dispatch=DispatchSettings(**({"resume_wait": 0.0} | dispatch)),
        cache=tmp_path / "cache",
        clock=clock,
    )
    try:
        yield Router(service=service, clock=clock, registry=registry)
    finally:
        await service.aclose()


def _places(targets: Sequence[str | ScriptedWorker | Where]) -> Sequence[str] | Where:
    first = targets[0] if targets else None
    if isinstance(first, Where):
        return first
    return [target.target if isinstance(target, ScriptedWorker) else str(target) for target in targets]


def request(*tokens: int, **changes: Any) -> GenerateRequest:
    """A completion of these prompt tokens; keyword arguments of the request, or else of its sampling."""
    if "tenant" in changes:
        changes["caller"] = Caller(tenant=changes.pop("tenant"))
    own = set(GenerateRequest.__dataclass_fields__)
    fields = {name: value for name, value in changes.items() if name in own}
    sampling = SamplingOptions(**{name: value for name, value in changes.items() if name not in own})
    return GenerateRequest(
        **({"model": "tiny", "prompt": TokenPrompt(tokens=tokens or (10, 11, 12)), "sampling": sampling} | fields)
    )


async def collect(generation: Generation) -> list[Piece]:
    """Every piece."""
    return [piece async for pieces in generation for piece in pieces]


def text_of(pieces: list[Piece], index: int = 0) -> str:
    """One choice's text."""
    return "".join(piece.text for piece in pieces if piece.index == index)
