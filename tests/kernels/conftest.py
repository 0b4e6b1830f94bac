"""Of all kernel tests: memory that nobody has written holds NaN (integers: their largest), so that what a kernel leaves out shows."""

from collections.abc import Callable

import pytest
import torch


def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`make`, whose result holds what nobody would take for a value."""

    def made(*sizes: object, **options: object) -> torch.Tensor:
        new = make(*sizes, **options)
        if new.dtype is torch.bool:
            return new.fill_(True)
        return new.fill_(torch.nan if new.is_floating_point() else torch.iinfo(new.dtype).max)

    return made


@pytest.fixture(autouse=True)
def unwritten_memory_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as a test runs."""
    for place, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(place, name, poisoned(getattr(place, name)))
