"""Checks that do not apply: tests skip those that they name, and no others."""

import pytest

from anbar.testing.engine_contract import NotApplicable, Target
from anbar.testing.engine_contract.target import needs
from tests.contract import hold

TARGET = Target("http://127.0.0.1:1", "llama")


def check_events_of(target: Target) -> None:
    needs(target.events, "it publishes no events")


def test_expected() -> None:
    """A check that is named is skipped, with what it says."""
    with pytest.raises(pytest.skip.Exception, match="it publishes no events"):
        hold(check_events_of, TARGET, {"check_events_of"})


def test_unexpected() -> None:
    """A check that is not named fails when it does not apply, so that nothing is lost unseen."""
    with pytest.raises(NotApplicable):
        hold(check_events_of, TARGET)


def test_no_longer_true() -> None:
    """A check that is named but applies fails too: the list is no longer true."""
    has_events = Target("http://127.0.0.1:1", "llama", events="tcp://127.0.0.1:1")
    hold(check_events_of, has_events)
    with pytest.raises(pytest.fail.Exception):
        hold(check_events_of, has_events, {"check_events_of"})
