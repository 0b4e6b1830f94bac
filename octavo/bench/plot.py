"""Curves on logarithmic axes as an SVG, without a library: panels side by side, so that a line of slope 1 is linear growth."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 300, 240  # of a panel's field, in pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 32, 46
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")
_FONT = 'font-family="sans-serif" font-size="11" fill="#444"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Points with positive coordinates."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """At least one curve with at least one point."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """From `low` to `high` over `length` pixels."""

    low: float
    high: float
    length: float

    @classmethod
    def over(cls, values: Sequence[float], length: float) -> "_Axis":
        low, high = min(values), max(values)
        return cls(low=low / 1.15, high=high * 1.15, length=length)

    def at(self, value: float) -> float:
        """Pixels from the lower end."""
        return self.length * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 times powers of ten; only powers of ten over more than two decades."""
        wide = self.high / self.low > 200
        for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            for digit in (1,) if wide else (1, 2, 5):
                if self.low <= digit * 10.0**power <= self.high:
                    yield digit * 10.0**power


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_FONT} {extra}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _frame(panel: Panel, x: _Axis, y: _Axis) -> Iterator[str]:
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>'
    yield _text(_WIDTH / 2, -12, panel.title, extra='font-weight="bold"')
    yield _text(_WIDTH / 2, _HEIGHT + 36, panel.x)
    yield _text(-48, _HEIGHT / 2, panel.y, extra=f'transform="rotate(-90 -48 {_HEIGHT / 2:.0f})"')
    for tick in x.ticks():
        yield _line(x.at(tick), 0, x.at(tick), _HEIGHT, "#eee")
        yield _text(x.at(tick), _HEIGHT + 16, f"{tick:g}")
    for tick in y.ticks():
        yield _line(0, _HEIGHT - y.at(tick), _WIDTH, _HEIGHT - y.at(tick), "#eee")
        yield _text(-6, _HEIGHT - y.at(tick) + 4, f"{tick:g}", "end")


def _drawn(curve: Curve, number: int, x: _Axis, y: _Axis) -> Iterator[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    points = [(x.at(a), _HEIGHT - y.at(b)) for a, b in zip(curve.xs, curve.ys, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    for a, b in points:
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>'
    yield f'<rect x="8" y="{8 + 16 * number}" width="10" height="10" fill="{colour}"/>'
    yield _text(23, 17 + 16 * number, curve.label, "start")


def _panel(panel: Panel, place: int) -> Iterator[str]:
    x = _Axis.over([value for curve in panel.curves for value in curve.xs], _WIDTH)
    y = _Axis.over([value for curve in panel.curves for value in curve.ys], _HEIGHT)
    left = _LEFT + place * (_LEFT + _WIDTH + _RIGHT)
    yield f'<g transform="translate({left} {_TOP})">'
    yield from _frame(panel, x, y)
    for number, curve in enumerate(panel.curves):
        yield from _drawn(curve, number, x, y)
    yield "</g>"


def svg(panels: Sequence[Panel]) -> str:
    """The whole document."""
    width, height = len(panels) * (_LEFT + _WIDTH + _RIGHT), _TOP + _HEIGHT + _BOTTOM
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = [line for place, panel in enumerate(panels) for line in _panel(panel, place)]
    return "\n".join([head, background, *body, "</svg>"]) + "\n"
