"""What a file's modification time says."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.store.stamp import from_ns, to_ns


@given(st.floats(0, 4e9), st.floats(2e-6, 1e12))
def test_it_says_both(used_s: float, saves_s: float) -> None:
    """The second of last use exactly, what it saves within 3 %, on file systems with times as coarse as a
    microsecond too."""
    for unit in (1, 100, 1000):
        stamp = from_ns(to_ns(used_s, saves_s) // unit * unit)
        assert stamp.used_s == int(used_s)
        assert abs(stamp.saves_s / saves_s - 1) < 0.03


@given(st.floats(0, 4e9), st.floats(allow_nan=True))
def test_any_number_may_be_given(used_s: float, saves_s: float) -> None:
    """None, negative, infinite and no number at all: the time of use is right, what is saved never less than
    nothing."""
    stamp = from_ns(to_ns(used_s, saves_s))
    assert stamp.used_s == int(used_s)
    assert stamp.saves_s >= 0
    assert (stamp.saves_s > 0) == (saves_s > 0)


@given(st.integers(0, 4 * 10**18).filter(lambda ns: ns % 1_000_000 != 424_000))
def test_times_that_others_made_say_only_when(mtime_ns: int) -> None:
    """A file that was touched or copied, or whose time was cut to seconds: what it saves is not known."""
    assert from_ns(mtime_ns) == (mtime_ns // 10**9, 0.0)
    assert from_ns(to_ns(5.0, 3.0) // 10**9 * 10**9) == (5, 0.0)
