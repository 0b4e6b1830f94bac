"""A worker as placement sees it, made again only where something that it is made of has changed.

What it is made of is never changed in place, but replaced; so the same objects make the same view, and nothing has to tell of a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from router.placement.view import AdapterUse, Share, WorkerView, view_of
from shared.types import Load, WorkerInfo

NO_USES: Mapping[bytes, AdapterUse] = MappingProxyType({})


@dataclass(kw_only=True, slots=True)
class _Kept:
    info: WorkerInfo
    load: Load
    pending: Share
    uses: Mapping[bytes, AdapterUse]
    view: WorkerView


class KeptView:
    """One link's."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def of(
        self,
        info: WorkerInfo,
        load: Load,
        *,
        pending: Share,
        dispatched: int,
        uses: Mapping[bytes, AdapterUse] = NO_USES,
    ) -> WorkerView:
        """The view of these. `uses` is empty where the worker takes no adapters."""
        kept = self._kept
        if (
            kept is not None
            and kept.load is load
            and kept.pending is pending
            and kept.view.dispatched == dispatched
            and kept.uses is uses
            and kept.info is info
        ):
            return kept.view
        view = view_of(info, load, pending=pending, dispatched=dispatched)
        if uses:
            view = replace(view, adapters=uses)
        self._kept = _Kept(info=info, load=load, pending=pending, uses=uses, view=view)
        return view
