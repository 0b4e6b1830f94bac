"""Pages of lists: what a caller asks, and what it gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.errors import InvalidRequest

T = TypeVar("T")

SIZE = 100  # where none is asked
MOST = 1_000
_MOST_TOKEN = 200  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """At most `size` entries, from behind the one that `after` names; empty: from the first. Raises InvalidRequest."""

    size: int = SIZE
    after: str = ""

    def __post_init__(self) -> None:
        """A size of 0 is no page."""
        if not 0 < self.size <= MOST:
            raise InvalidRequest(f"page_size must be from 1 to {MOST}", param="page_size")
        if len(self.after) > _MOST_TOKEN:
            raise _no_token()


@dataclass(frozen=True, kw_only=True, slots=True)
class Paged(Generic[T]):
    """A page, and what asks for the next; empty at the end."""

    items: Sequence[T]
    next: str


def _no_token() -> InvalidRequest:
    return InvalidRequest("page_token must be the one of the answer before", param="page_token")


def number_of(page: Page) -> int:
    """The number of a line. Raises InvalidRequest where the token is none."""
    if not page.after:
        return 0
    if not (page.after.isascii() and page.after.isdecimal() and len(page.after) < 19):
        raise _no_token()
    return int(page.after)


def paged(items: Sequence[T], page: Page, name: Callable[[T], str]) -> Paged[T]:
    """A page of `items`, which are taken in the order of their names: one that went between two pages is not missed, nor is another."""
    left = sorted((item for item in items if name(item) > page.after), key=name)
    some = left[: page.size]
    return Paged(items=some, next=name(some[-1]) if len(left) > len(some) else "")
