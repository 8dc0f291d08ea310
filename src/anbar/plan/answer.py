"""What a calculator says: figures, each with its arithmetic, what was assumed, and what follows."""

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One number that somebody asked for."""

    name: str
    value: float
    unit: str
    """Of `value`: s, bytes, bytes/s, tokens, tokens/s, share, count."""
    how: str
    """The arithmetic, with the numbers put in."""


class Answer(msgspec.Struct, frozen=True):
    """The whole of it."""

    title: str
    figures: tuple[Figure, ...]
    conclusion: str
    """One sentence."""
    assumptions: tuple[str, ...] = ()


_SCALES = {
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
    "bytes/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "bytes/s")),
    "s": ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
}


def in_words(value: float, unit: str) -> str:
    """With three digits, in the largest unit that it reaches: 671 MB, 1.2 ms, 12.5 %."""
    if value in (float("inf"), float("-inf")):
        if unit != "share":
            return "without end"
        return "never" if value > 0 else "always"
    if unit == "share":
        return f"{100 * value:.3g} %" if abs(value) < 10 else f"{100 * value:,.0f} %"
    if unit in ("count", "tokens", "tokens/s"):
        number = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
        return number if unit == "count" else f"{number} {unit}"
    scales = _SCALES[unit]
    scale, name = next((pair for pair in scales if abs(value) >= pair[0]), scales[-1])
    shown = value / scale
    return f"{shown:,.0f} {name}" if abs(shown) >= 1000 else f"{shown:.3g} {name}"
