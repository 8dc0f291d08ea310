"""What a starting stack tells its user, without saying how it is shown."""

from typing import Protocol


class Reporter(Protocol):
    """Implementations are in `cli`. Calls come from one thread and return at once."""

    def phase(self, part: str, text: str, elapsed_s: float) -> None:
        """`part` is busy with `text` since it was started `elapsed_s` ago; called about once a second."""
        ...

    def ready(self, part: str, elapsed_s: float) -> None:
        """`part` serves."""
        ...

    def note(self, text: str) -> None:
        """Something that went as it should."""
        ...

    def warn(self, text: str) -> None:
        """Something that needs the user's eye, though the stack goes on."""
        ...
