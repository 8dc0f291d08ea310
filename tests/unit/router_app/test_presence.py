"""Which engines an entry has after a sequence of looks."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from anbar.apps.router.presence import Presence
from anbar.config.discover import DiscoverConfig
from anbar.config.found import FoundEngine, Sighting


def presence(**limits: object) -> Presence:
    return Presence(DiscoverConfig.model_validate({"dns": "a.b", "port": 1, **limits}))


def sighting(names: str, untold: str = "") -> Sighting:
    return Sighting(tuple(FoundEngine(url=f"http://{name}:1") for name in names), 1.0, untold)


def held(found: Presence) -> str:
    return "".join(sorted(place.host for place in found.held))


def saw(found: Presence, *looks: str) -> list[str]:
    """Who is held after each of some good looks."""
    states = []
    for names in looks:
        found.saw(sighting(names))
        states.append(held(found))
    return states


def test_an_engine_leaves_after_three_good_looks() -> None:
    """It has to be missing in each of them; one that comes back in between begins anew."""
    assert saw(presence(), "ab", "a", "a", "ab", "a", "a", "a") == ["ab"] * 6 + ["a"]


def test_a_look_that_tells_a_part_takes_nobody_away() -> None:
    """And adds who is new in it."""
    found = presence(leave_after=1)
    saw(found, "ab")
    for _ in range(5):
        found.saw(sighting("c", untold="x timed out"))
    assert held(found) == "abc"
    assert saw(found, "c") == ["c"]


def test_nobody_at_all_is_not_believed_while_engines_answer() -> None:
    """The DNS names none for an hour: who answers health checks stays; who does not leaves after the grace,
    counted from when it failed, and is not missed; one that answered in between is."""
    found, answering = presence(empty_grace_s=60.0), {"a", "b", "c"}

    def nobody(now_s: float) -> str:
        found.saw_nobody(now_s, lambda place: place.host in answering)
        return held(found)

    saw(found, "abc")
    assert nobody(0.0) == "abc"
    answering -= {"b", "c"}
    assert [nobody(3000.0), nobody(3059.0)] == ["abc"] * 2
    answering.add("c")
    assert nobody(3059.5) == "abc"
    answering.remove("c")
    assert [nobody(3060.0), nobody(3119.0), nobody(3120.0)] == ["ac", "ac", "a"]
    assert saw(found, "ab") == ["ab"]


def test_a_file_that_names_nobody_is_believed() -> None:
    """An empty list is a good look."""
    assert saw(presence(leave_after=2), "ab", "", "") == ["ab", "ab", ""]


def test_more_than_the_limit() -> None:
    """Those that are known keep their places; of the others the first by name come in, and the rest is
    told."""
    found = presence(max_engines=3, leave_after=1)
    assert saw(found, "xy", "abcxy") == ["xy", "axy"]
    assert [place.host for place in found.left_out] == ["b", "c"]
    assert saw(found, "abcx") == ["abx"]
    assert [place.host for place in found.left_out] == ["c"]


def test_what_is_said_of_an_engine_may_change() -> None:
    """The last word counts."""
    found = presence()
    found.saw(Sighting((FoundEngine(url="http://a:1", tokenizer="/t"),), 1.0))
    found.saw(Sighting((FoundEngine(url="http://a:1", tokenizer="/u"),), 1.0))
    assert [engine.tokenizer for engine in found.engines()] == ["/u"]


Look = tuple[str, frozenset[str]]
LOOKS = st.lists(
    st.tuples(st.sampled_from(["whole", "part", "nobody", "failed"]), st.frozensets(st.sampled_from("abcd"))),
    max_size=30,
)


@given(LOOKS, st.integers(1, 3))
def test_no_sequence_drops_an_engine_that_the_last_good_looks_hold(
    looks: Sequence[Look], leave_after: int
) -> None:
    """Against the rule itself: an engine is held exactly if some look has named it and it is not missing in
    the last `leave_after` good looks that come after. All engines answer their health checks."""
    found = presence(leave_after=leave_after)
    good: list[frozenset[str]] = []
    """Good looks that were whole, with what partial ones named put into the one before."""
    for kind, names in looks:
        match kind:
            case "whole":
                found.saw(sighting("".join(sorted(names))))
                good.append(names)
            case "part":
                found.saw(sighting("".join(sorted(names)), "some"))
                good = [*good[:-1], good[-1] | names] if good else [names]
            case "nobody":
                found.saw_nobody(len(good) * 1000.0, lambda place: True)
        expected = frozenset().union(*good[-leave_after:])
        assert held(found) == "".join(sorted(expected))
