"""What a request asks of the shared tier: nothing that a client sends may raise or cost isolation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost
from anbar.tier.wish import BYPASS, DEFAULT, Storing, Wish, parse

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "v": json_values,
        "scope": json_values,
        "store": json_values,
        "wait_ms": json_values,
        "expect_tokens": json_values,
        "prefill_s_per_token": json_values,
        "prefill_s_per_token2": json_values,
        "sealed": json_values,
    },
)


@pytest.mark.parametrize("params", [None, {}, {"other": 1}, {"anbar": None}])
def test_nothing_asked(params: object) -> None:
    """Without our field the defaults hold."""
    assert parse(params) == DEFAULT


@pytest.mark.parametrize("sealed", [True, 1, "yes", [], 0.5])
def test_what_is_to_be_sealed_is_never_stored_plain(sealed: object) -> None:
    """An engine that does not encrypt the scope keeps the request out of the store, also when what is said is
    no truth value; one that does, or a request that says nothing, goes on as before."""
    asked = parse({"anbar": {"v": 1, "scope": "bank", "sealed": sealed}})
    kept_out = asked.granted(seals=False)
    assert (kept_out.scope, kept_out.bypass, kept_out.may_store) == ("bank", True, False)
    assert asked.granted(seals=True) == asked
    assert asked.may_store
    for plain in ({"v": 1, "scope": "bank"}, {"v": 1, "scope": "bank", "sealed": False}):
        assert parse({"anbar": plain}).granted(seals=False).may_store


def test_everything_asked() -> None:
    """All fields that this version reads."""
    params = {"anbar": {"v": 1, "scope": "tenant", "store": "never", "wait_ms": 250, "expect_tokens": 7}}
    assert parse(params) == Wish("tenant", Storing.NEVER, 0.25, 7)
    assert not parse(params).may_store


@pytest.mark.parametrize(
    "anbar",
    [
        "text",
        [],
        {},
        {"v": 2},
        {"v": True},
        {"v": "1"},
        {"v": 1, "scope": 7},
        {"v": 1, "scope": "x" * 257},
        {"v": 1, "scope": "\ud800"},
    ],
)
def test_what_cannot_be_read_stays_out_of_the_store(anbar: object) -> None:
    """An unknown version or an unreadable scope: neither looked up nor stored, rather than shared too
    widely."""
    assert parse({"anbar": anbar}) == BYPASS


@pytest.mark.parametrize("wait_ms", [-1, 60_001, 2.5, "5", True, None])
def test_a_senseless_wait_is_ignored(wait_ms: object) -> None:
    """The tier's own bound holds."""
    assert parse({"anbar": {"v": 1, "wait_ms": wait_ms}}).wait_s is None


def test_what_prefill_costs() -> None:
    """The request may say what its tokens cost to compute; the quadratic part may be left out."""
    told = {"v": 1, "prefill_s_per_token": 1e-4, "prefill_s_per_token2": 2e-9}
    assert parse({"anbar": told}).prefill == PrefillCost(1e-4, 2e-9)
    assert parse({"anbar": {"v": 1, "prefill_s_per_token": 1}}).prefill == PrefillCost(1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"prefill_s_per_token": 0},
        {"prefill_s_per_token": -1e-4},
        {"prefill_s_per_token": True},
        {"prefill_s_per_token": "1e-4"},
        {"prefill_s_per_token": float("nan")},
        {"prefill_s_per_token": float("inf")},
        {"prefill_s_per_token": 10**400},
        {"prefill_s_per_token2": 1e-9},
        {"prefill_s_per_token": 1e-4, "prefill_s_per_token2": -1},
    ],
)
def test_senseless_costs_are_ignored(fields: dict[str, object]) -> None:
    """What the tier has learned holds."""
    assert parse({"anbar": {"v": 1, **fields}}).prefill is None


@pytest.mark.parametrize("store", ["sometimes", 1, None, [], {}])
def test_an_unknown_storing_mode_stores_nothing(store: object) -> None:
    """A newer router may ask for something stricter than what is known here."""
    assert parse({"anbar": {"v": 1, "store": store}}).storing is Storing.NEVER


@given(json_values | st.fixed_dictionaries({"anbar": fields | json_values}))
def test_nothing_raises(params: object) -> None:
    """Any JSON gives a wish whose scope can be used."""
    wish = parse(params)
    assert wish.scope.encode() is not None
    assert wish.wait_s is None or 0 <= wish.wait_s <= 60
