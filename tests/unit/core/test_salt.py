"""Salts of scopes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.salt import SALT_CHARS, cache_salt

parts = st.tuples(st.binary(max_size=40), st.text(max_size=40), st.binary(max_size=16), st.text(max_size=40))


@given(parts)
def test_a_salt_is_what_engines_take(given_parts: tuple[bytes, str, bytes, str]) -> None:
    """Of characters that no engine refuses, and never longer than they allow (128)."""
    salt = cache_salt(*given_parts)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", salt)
    assert len(salt) == SALT_CHARS


@given(parts, parts)
def test_salts_are_equal_only_where_all_is(
    one: tuple[bytes, str, bytes, str], other: tuple[bytes, str, bytes, str]
) -> None:
    """Another secret, scope, epoch or own salt makes another one. (HMAC fills a key that is shorter than
    its block with zeros: keys that differ in those alone are one. The product's have 32 bytes.)"""
    same = one[0].rstrip(b"\0") == other[0].rstrip(b"\0") and one[1:] == other[1:]
    assert (cache_salt(*one) == cache_salt(*other)) is same


@given(st.text(max_size=8), st.binary(max_size=8), st.text(max_size=8), st.integers(0, 8))
def test_parts_do_not_run_into_each_other(scope: str, epoch: bytes, own: str, cut: int) -> None:
    """What is moved from one part to its neighbour makes another salt."""
    salt = cache_salt(b"k" * 32, scope, epoch, own)
    head, tail = scope[:cut], scope[cut:]
    if tail:
        assert cache_salt(b"k" * 32, head, tail.encode("utf-8", "replace") + epoch, own) != salt
    if epoch:
        moved = epoch.decode("latin-1") + own
        assert cache_salt(b"k" * 32, scope, b"", moved) != salt


def test_a_salt_stays_what_it_is() -> None:
    """Routers of different versions agree: a change here makes all that is cached foreign."""
    assert cache_salt(b"k" * 32, "bank", b"e" * 16) == "nwjRnXClMbPx4bel6Frz2PETomvSVwuKqCLq5I1KjoA"
