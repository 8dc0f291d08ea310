"""The sketch against exact counts."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.tier.reuse import DEPTH, MOST, ReuseSketch

keys = st.binary(min_size=1, max_size=2)


@given(st.lists(keys, max_size=200), st.sampled_from([1, 2, 16, 1024]))
def test_never_less_than_seen(seen: list[bytes], width: int) -> None:
    """Before the first ageing, in a sketch of any size, however crowded: no key is said to have been seen
    less often than it was, and `see` says what was there before."""
    sketch, exact = ReuseSketch(width, sample=10_000), Counter[bytes]()
    for key in seen:
        assert sketch.see(key) >= exact[key]
        exact[key] += 1
    assert all(sketch.count(key) >= number for key, number in exact.items())


@given(st.lists(keys, max_size=300), st.integers(1, 50))
def test_never_less_than_half_of_it(seen: list[bytes], sample: int) -> None:
    """Through ageing: not less than exact counts that are halved, rounded down, at the same moments."""
    sketch, exact, num_seen = ReuseSketch(16, sample=sample), Counter[bytes](), 0
    for key in seen:
        sketch.see(key)
        exact[key] += 1
        num_seen += 1
        if num_seen >= sample:
            exact = Counter({name: number // 2 for name, number in exact.items()})
            num_seen //= 2
        assert all(sketch.count(name) >= number for name, number in exact.items())


def test_nearly_exact_in_its_own_size() -> None:
    """Just before it ages: hardly any key is counted too often, and of new ones fewer than one in twenty
    looks as if it had been seen."""
    sketch, rng = ReuseSketch(1 << 12), Random(5)
    exact = Counter({rng.randbytes(36): rng.randrange(1, 6) for _ in range(600)})
    sightings = list(exact.elements())
    rng.shuffle(sightings)
    assert len(sightings) < 1 << 11
    for key in sightings:
        sketch.see(key)
    assert sum(sketch.count(key) != number for key, number in exact.items()) < 6
    sketch = ReuseSketch(1 << 12)
    for _ in range((1 << 11) - 1):
        sketch.see(rng.randbytes(36))
    assert sum(sketch.count(rng.randbytes(36)) > 0 for _ in range(1000)) < 50


def test_what_is_not_seen_any_more_is_forgotten() -> None:
    """A key that was seen 100 times is down to nothing after some thousands of others."""
    sketch, rng = ReuseSketch(1 << 10, sample=1 << 10), Random(1)
    for _ in range(100):
        sketch.see(b"once popular")
    for _ in range(10 << 10):
        sketch.see(rng.randbytes(16))
    assert sketch.count(b"once popular") < 10


def test_bounds() -> None:
    """Memory is what was asked for, a counter stops at its end, and a width that is no power of two is
    refused."""
    assert ReuseSketch().num_bytes == 1 << 20
    sketch = ReuseSketch(1 << 16)
    assert sketch.num_bytes == DEPTH << 16
    for _ in range(2 * MOST):
        sketch.see(b"key")
    assert sketch.count(b"key") == MOST
    for width in (0, 3, -4):
        with pytest.raises(ValueError, match="power of two"):
            ReuseSketch(width)
