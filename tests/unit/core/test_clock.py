"""The clock that tests move by hand."""

import pytest

from anbar.core.clock import ManualClock


def test_manual_clock_moves_forward_only() -> None:
    """It stands still until told, and refuses to go back."""
    clock = ManualClock(5.0)
    clock.advance(1.5)
    assert clock.now_s() == 6.5
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1.0)
