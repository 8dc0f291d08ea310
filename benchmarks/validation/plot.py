"""Small line charts as SVG: a few series over one axis each, straight or logarithmic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 40, 70
_COLOURS = ("#1f5fa8", "#c0561b", "#3a7d34", "#7a4a9e", "#555555")
_TICKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `dots`: marks without a line, for what was measured elsewhere."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines with the names of the axes. `log_x`: decades are equally far apart."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False

    def svg(self) -> str:
        """The whole file."""
        xs = [self._x(x) for line in self.lines for x, _ in line.points]
        top = max(y for line in self.lines for _, y in line.points) * 1.05
        frame = _Frame(min(xs), max(xs), top)
        body = [*self._axes(frame, top), *self._drawn(frame)]
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="sans-serif" font-size="12">'
        )
        back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        title = f"<title>{escape(self.title)}</title>" + _text(
            WIDTH / 2, 18, self.title, 'text-anchor="middle" font-weight="bold"'
        )
        return "\n".join([head, back, title, *body, "</svg>"]) + "\n"

    def _x(self, x: float) -> float:
        return math.log10(x) if self.log_x else x

    def _axes(self, frame: "_Frame", top: float) -> list[str]:
        parts = [_text(WIDTH / 2, HEIGHT - 34, self.x, 'text-anchor="middle"')]
        parts.append(
            _text(0, 0, self.y, f'text-anchor="middle" transform="translate(14 {HEIGHT / 2}) rotate(-90)"')
        )
        step = nice(top / _TICKS)
        for number in range(int(top / step) + 1):
            y = frame.y(number * step)
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="#dddddd"/>')
            parts.append(_text(_LEFT - 6, y + 4, f"{number * step:,g}", 'text-anchor="end"'))
        for x, label in self._x_ticks(frame):
            parts.append(_text(frame.x(x), HEIGHT - _BOTTOM + 18, label, 'text-anchor="middle"'))
        return parts

    def _x_ticks(self, frame: "_Frame") -> list[tuple[float, str]]:
        if self.log_x:
            decades = range(math.ceil(frame.low - 1e-9), math.floor(frame.high + 1e-9) + 1)
            return [(float(d), short(10.0**d)) for d in decades]
        step = nice((frame.high - frame.low) / _TICKS)
        first, last = math.ceil(frame.low / step - 1e-9), math.floor(frame.high / step + 1e-9)
        return [(n * step, short(n * step)) for n in range(first, last + 1)]

    def _drawn(self, frame: "_Frame") -> list[str]:
        parts: list[str] = []
        for number, line in enumerate(self.lines):
            colour = _COLOURS[number % len(_COLOURS)]
            places = [(frame.x(self._x(x)), frame.y(y)) for x, y in line.points]
            if line.dots:
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
            else:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
                parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            left = 10 + number * (WIDTH - 10) / len(self.lines)
            mark = "●" if line.dots else "—"
            parts.append(_text(left, HEIGHT - 10, f"{mark} {line.name}", f'fill="{colour}"'))
        return parts


@dataclass(frozen=True, slots=True)
class _Frame:
    low: float
    high: float
    top: float

    def x(self, x: float) -> float:
        return _LEFT + (x - self.low) / (self.high - self.low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, y: float) -> float:
        return HEIGHT - _BOTTOM - y / self.top * (HEIGHT - _TOP - _BOTTOM)


def nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= step * (1 - 1e-9))


def short(value: float) -> str:
    """1500 is 1.5K."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
