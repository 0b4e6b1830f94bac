"""A tenant's rates as they stand, and how OpenAI's headers tell them."""

from collections.abc import Mapping
from dataclasses import dataclass

WINDOW_MS = 60_000  # what is used comes back this long after
SLICE_MS = 250  # ... or up to so much later: uses are kept by slices of time


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One quantity: `limit` a minute, `remaining` now; `reset` is the seconds until all is there again, if nothing more is used."""

    limit: int
    remaining: int
    reset: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """None where the tenant has no such limit."""

    requests: Rate | None = None
    prompt_tokens: Rate | None = None
    output_tokens: Rate | None = None

    def headers(self) -> Mapping[str, str]:
        """OpenAI's x-ratelimit-*; its `tokens` is whichever of prompt and output tokens is nearer to its limit, and both have their own."""
        both = [rate for rate in (self.prompt_tokens, self.output_tokens) if rate is not None]
        tokens = min(both, key=lambda rate: rate.remaining / rate.limit, default=None)
        named = {
            "requests": self.requests,
            "tokens": tokens,
            "prompt-tokens": self.prompt_tokens,
            "output-tokens": self.output_tokens,
        }
        told: dict[str, str] = {}
        for name, rate in named.items():
            if rate is not None:
                told[f"x-ratelimit-limit-{name}"] = str(rate.limit)
                told[f"x-ratelimit-remaining-{name}"] = str(rate.remaining)
                told[f"x-ratelimit-reset-{name}"] = duration(rate.reset)
        return told


def duration(seconds: float) -> str:
    """As OpenAI writes them: 12ms, 1.5s, 6m0s."""
    ms = max(0, round(seconds * 1000))
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
