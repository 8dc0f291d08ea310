"""Names that stand for others: who draws what."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.ids import EngineId
from anbar.route.targets import Target, Targets

OLD, NEW = Target("v1", weight=95), Target("v2", weight=5)


def test_a_name_that_is_not_listed_stands_for_itself() -> None:
    assert Targets({"a": [OLD]}).of("b", "key") == (Target("b"),)


def test_an_alias_has_one_target() -> None:
    assert Targets({"a": [OLD]}).of("a", "key") == (OLD,)


def test_shares_are_counted_exactly() -> None:
    """Of ten thousand keys, hashed, so that the count is the same on every machine, 5 % draw the canary; each
    draws it always; another name draws on its own."""
    targets = Targets({"a": [OLD, NEW], "b": [OLD, NEW]})
    drawn = {str(at): targets.of("a", str(at)) for at in range(10_000)}
    assert Counter(first.model for first, _ in drawn.values()) == {"v1": 9471, "v2": 529}
    assert all(targets.of("a", key) == both for key, both in list(drawn.items())[:100])
    assert {key for key, both in drawn.items() if both[0] is NEW} != {
        key for key in drawn if targets.of("b", key)[0] is NEW
    }


def test_a_larger_share_takes_and_gives_nobody_back() -> None:
    """When a canary listed last grows from 5 to 20 %, who had it keeps it: sessions move one way only."""
    small = Targets({"a": [OLD, NEW]})
    large = Targets({"a": [Target("v1", weight=80), Target("v2", weight=20)]})
    keys = [str(at) for at in range(2000)]
    had = {key for key in keys if small.of("a", key)[0].model == "v2"}
    has = {key for key in keys if large.of("a", key)[0].model == "v2"}
    assert had < has


def test_the_others_follow_as_listed_and_weight_0_is_never_drawn() -> None:
    """A target without weight is what is left when the others are gone."""
    rest = Target("v0", frozenset({EngineId("e0")}), weight=0)
    targets = Targets({"a": [rest, OLD, NEW]})
    drawn = {targets.of("a", str(at)) for at in range(200)}
    assert drawn == {(OLD, rest, NEW), (NEW, rest, OLD)}


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=5).filter(any),
    st.text(max_size=5),
)
def test_something_with_weight_is_drawn(weights: list[float], key: str) -> None:
    listed = [Target(str(at), weight=weight) for at, weight in enumerate(weights)]
    first, *others = Targets({"a": listed}).of("a", key)
    assert first.weight > 0
    assert len({first, *others}) == len(listed)


def test_weights_of_0_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' has no target"):
        Targets({"a": [Target("v1", weight=0)]})
