"""Plots as inline SVG: lines over a plane with ticks and a legend. No script, no font, no network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `points` in the plane's units."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    has_marks: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """What a plane shows. `percent`: shares as percentages along y; `log`: x by decades."""

    x: str
    y: str
    percent: bool = False
    log: bool = False
    most: float | None = None
    """Upper end of y; None: by the data."""


def plot(axes: Axes, lines: Sequence[Line]) -> str:
    """An <svg>; "" where there is nothing to draw."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    plane = _Plane(axes, points)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(axes.y)} by {escape(axes.x)}">',
        *plane.frame(),
    ]
    for line in lines:
        colour = f"c{line.colour}"
        path = " ".join(f"{plane.x(x):.1f},{plane.y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        if line.has_marks:
            parts += [
                f'<circle class="mark {colour}" cx="{plane.x(x):.1f}" cy="{plane.y(y):.1f}" r="3.5"/>'
                for x, y in line.points
            ]
    return "".join([*parts, "</svg>", _legend(lines)])


def _legend(lines: Sequence[Line]) -> str:
    entries = [f'<span><i class="c{line.colour}"></i>{escape(line.name)}</span>' for line in lines]
    return f'<div class="legend">{"".join(entries)}</div>'


class _Plane:
    def __init__(self, axes: Axes, points: Sequence[tuple[float, float]]) -> None:
        self._axes = axes
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self._x_ticks = _decades(xs) if axes.log else _ticks(min(xs), max(xs))
        low = min(0.0, *ys)
        self._y_ticks = _ticks(low, axes.most if axes.most is not None else max(*ys, low))
        self._x = (self._x_ticks[0], self._x_ticks[-1])
        self._y = (self._y_ticks[0], self._y_ticks[-1])

    def x(self, value: float) -> float:
        low, high = self._x
        if self._axes.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = (value - low) / (high - low)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def frame(self) -> list[str]:
        """Grid, ticks and names of the axes."""
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for tick in self._y_ticks:
            y = self.y(tick)
            kind = "zero" if tick == 0 else "grid"
            parts.append(f'<line class="{kind}" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{self._label(tick)}</text>'
            )
        for tick in self._x_ticks:
            x = self.x(tick)
            text = _number(tick)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>')
        middle_x, middle_y = (_LEFT + right) / 2, (_TOP + bottom) / 2
        parts.append(
            f'<text class="name" x="{middle_x:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{escape(self._axes.x)}</text>"
        )
        parts.append(
            f'<text class="name" transform="translate(13 {middle_y:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self._axes.y)}</text>"
        )
        return parts

    def _label(self, value: float) -> str:
        return f"{round(100 * value, 6):g} %" if self._axes.percent else _number(value)


def _number(value: float) -> str:
    value = round(value, 9)
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`; at least two."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def _decades(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around `values`, which are above 0."""
    low, high = max(min(values), 1e-4), max(*values, 1e-3)
    around = [nice * 10.0**power for power in range(-5, 6) for nice in (1, 2, 5)]
    first = max((index for index, tick in enumerate(around) if tick <= low * (1 + 1e-9)), default=0)
    last = next((index for index, tick in enumerate(around) if tick >= high * (1 - 1e-9)), len(around) - 1)
    ticks = [round(tick, 12) for tick in around[first : max(last, first + 1) + 1]]
    if len(ticks) > 9:
        ends = (ticks[0], ticks[-1])
        ticks = [tick for tick in ticks if tick in ends or round(math.log10(tick), 9).is_integer()]
    return ticks
