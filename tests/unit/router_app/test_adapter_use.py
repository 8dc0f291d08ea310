"""Which adapters an engine has in its slots, told by the engine and by what it was sent."""

from anbar.adapters.vllm.probe import AdapterFacts
from anbar.apps.router.adapter_use import MAX_REMEMBERED, AdapterUse


def told(num_slots: int, *running: str) -> AdapterFacts:
    return AdapterFacts(num_slots, frozenset(running))


def test_requests_in_flight_count_at_once() -> None:
    """A slot is taken from when a request with an adapter is sent until the last one has ended, whatever the
    metrics of a second ago say; requests without one take none."""
    use = AdapterUse()
    use.told = told(1)
    with use.using(None):
        assert not use.is_full
    with use.using("x"):
        with use.using("x"):
            assert (use.running, use.loaded, use.is_full) == ({"x"}, {"x"}, True)
        assert use.is_full
    assert (use.running, use.loaded, use.is_full) == (frozenset(), {"x"}, False)


def test_what_runs_for_others_counts_too() -> None:
    """Another router's requests are known from the engine's metrics."""
    use = AdapterUse()
    use.told = told(2, "y")
    assert (use.loaded, use.is_full) == ({"y"}, False)
    with use.using("x"):
        assert (use.loaded, use.is_full) == ({"x", "y"}, True)


def test_the_one_used_longest_ago_goes_first() -> None:
    """Idle adapters stay in the slots that running ones leave, the last used ones."""
    use = AdapterUse()
    use.told = told(2)
    for name in "xyzy":
        with use.using(name):
            pass
    assert use.loaded == {"z", "y"}
    with use.using("w"):
        assert use.loaded == {"w", "y"}
    use.told = told(2, "a", "b", "c")
    assert use.loaded == {"a", "b", "c"}


def test_an_engine_that_does_not_tell_is_never_full() -> None:
    """Without a number of slots none is said to be taken; what was used is remembered, within bounds."""
    use = AdapterUse()
    for at in range(2 * MAX_REMEMBERED):
        with use.using(str(at)):
            assert not use.is_full
    assert len(use.loaded) == MAX_REMEMBERED
    use.forget()
    assert use.loaded == frozenset()
