"""Adapters of a router, changed and listed by whoever may."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from octavo.client.credentials import metadata_of
from octavo.client.failures import told
from octavo.client.requests import DEFAULT_TARGET
from protos import adapters_pb2 as pb
from protos import adapters_pb2_grpc as pb_grpc
from shared import rpc

LOAD_SECONDS = 600.0  # what is loaded may come from far
SECONDS = 60.0

_LEVELS = {
    pb.ADAPTER_RESIDENCE_ABSENT: "absent",
    pb.ADAPTER_RESIDENCE_SOURCE: "source",
    pb.ADAPTER_RESIDENCE_HOST: "host",
    pb.ADAPTER_RESIDENCE_DEVICE: "device",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AtWorker:
    """An adapter at one worker. `level` is absent, source (known by name), host (in memory) or device (in a slot); `digest` is in hex."""

    worker: str
    level: str
    digest: str
    bytes: int
    pinned: bool
    loaded: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A name and what requests get under it. `loaded` is in Unix seconds; the rest as in protos/adapters.proto."""

    name: str
    model: str
    digest: str
    rank: int
    bytes: int
    pinned: bool
    loaded: int
    registered: bool
    source: str
    workers: Sequence[AtWorker]


def _at(at: pb.AdapterAtWorker) -> AtWorker:
    return AtWorker(
        worker=at.worker_id,
        level=_LEVELS.get(at.level, "unknown"),
        digest=at.digest.hex(),
        bytes=at.bytes,
        pinned=at.pinned,
        loaded=at.loaded,
        error=at.error,
    )


def _adapter(adapter: pb.Adapter) -> Adapter:
    return Adapter(
        name=adapter.name,
        model=adapter.model,
        digest=adapter.digest.hex(),
        rank=adapter.rank,
        bytes=adapter.bytes,
        pinned=adapter.pinned,
        loaded=adapter.loaded,
        registered=adapter.registered,
        source=adapter.source,
        workers=tuple(map(_at, adapter.workers)),
    )


class AdapterClient:
    """Blocking. `api_key` None: $OCTAVO_API_KEY, or none. All methods raise OctavoErrors."""

    def __init__(self, target: str = DEFAULT_TARGET, *, api_key: str | None = None):
        self._channel = rpc.blocking_channel(target)
        self._stub: pb_grpc.AdaptersStub = pb_grpc.AdaptersStub(self._channel)
        self._metadata = metadata_of(api_key)

    def list(self, model: str = "") -> Sequence[Adapter]:
        """All that the key may see; of one model, or of all."""
        with told():
            answer = self._stub.List(pb.AdaptersListRequest(model=model), metadata=self._metadata, timeout=SECONDS)
        return tuple(map(_adapter, answer.adapters))

    def load(
        self, name: str, source: str = "", *, model: str = "", replace: bool = False, pin: bool = False
    ) -> Adapter:
        """At every worker, or at none. `source` empty: its name in the adapter directory."""
        request = pb.AdaptersLoadRequest(name=name, source=source, model=model, replace=replace, pin=pin)
        with told():
            return _adapter(self._stub.Load(request, metadata=self._metadata, timeout=LOAD_SECONDS))

    def unload(self, name: str, *, model: str = "") -> str:
        """From every worker; its canonical name."""
        request = pb.AdaptersUnloadRequest(name=name, model=model)
        with told():
            return self._stub.Unload(request, metadata=self._metadata, timeout=SECONDS).name

    def pin(self, name: str, pinned: bool = True, *, model: str = "") -> Adapter:
        """Keep it in every worker's memory, or not any more."""
        request = pb.AdaptersPinRequest(name=name, model=model, pinned=pinned)
        with told():
            return _adapter(self._stub.Pin(request, metadata=self._metadata, timeout=LOAD_SECONDS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._channel.close()
