"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.config.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1048576, 1048576),
        ("1048576", 1048576),
        ("2GiB", 2 * 1024**3),
        ("512 MiB", 512 * 1024**2),
        ("2gb", 2 * 1000**3),
        ("4G", 4 * 1024**3),
        ("1.5GiB", 3 * 512 * 1024**2),
        ("64KiB", 65536),
    ],
)
def test_forms(text: object, expected: int) -> None:
    """Integers, binary and decimal units, fractions, any case."""
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "2 apples", "-1GiB", "1e9", True, None, 1.5, ["2GiB"]])
def test_what_is_no_size(text: object) -> None:
    """Refused with what is allowed."""
    with pytest.raises(
        ValueError, match="a whole number of bytes from 0, or such a number with a unit, as 512MiB"
    ):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1024), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_sizes_survive_formatting(amount: int, unit: str) -> None:
    """What is shown can be pasted back."""
    size = parse_size(f"{amount}{unit}")
    assert parse_size(format_size(size)) == size
