"""How many damaged entries may be kept aside."""

from anbar.adapters.store.allowance import Allowance
from anbar.adapters.store.quarantine import MAX_AGE_S, MAX_BYTES, MAX_FILES
from anbar.core.clock import ManualClock


def test_no_more_than_some_in_a_week() -> None:
    clock = ManualClock()
    allowance = Allowance(clock.now_s)
    assert [allowance.admit(1) for _ in range(MAX_FILES + 1)] == [True] * MAX_FILES + [False]
    clock.advance(MAX_AGE_S - 1)
    assert not allowance.admit(1)
    clock.advance(1)
    assert allowance.admit(1)


def test_no_more_than_some_bytes() -> None:
    """One that does not fit leaves room for one that does."""
    allowance = Allowance(ManualClock().now_s)
    assert [allowance.admit(size) for size in (MAX_BYTES - 1, 2, 1, 1)] == [True, False, True, False]
