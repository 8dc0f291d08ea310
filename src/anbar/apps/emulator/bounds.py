"""Numbers that the emulator is given, held to what is possible."""

DAY_S = 86_400.0
"""The longest that anything is delayed."""
MANY = 1_000_000_000
"""The most of anything that is counted."""


class OutOfBounds(ValueError):
    """A field has a number that it cannot have; `field` names it."""

    def __init__(self, field: str, value: float, least: float, most: float) -> None:
        super().__init__(f"{field} is {value}, allowed: {least:.0f} to {most:.0f}")
        self.field = field


def hold(owner: object, **bounds: tuple[float, float]) -> None:
    """OutOfBounds unless each field is within its bounds, both included; None is let be, NaN is not."""
    for field, (least, most) in bounds.items():
        value = getattr(owner, field)
        if value is not None and not least <= value <= most:
            raise OutOfBounds(field, value, least, most)
