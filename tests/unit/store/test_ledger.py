"""What scopes may hold of a store that must be listed to know: counting, evicting, failures and restarts."""

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import count

import pytest

from anbar.adapters.store.layout import scope_dir
from anbar.adapters.store.ledger import Ledger, Pace, Seen, ledger_of
from anbar.core.errors import StoreError
from anbar.tier.scopes import ScopeRules, Scopes
from tests.waiting import wait_until

PACE = Pace(period_s=3600.0, shortest_s=0.0)
SCOPES = Scopes(named={"small": ScopeRules(quota_bytes=1000), "free": ScopeRules()})


class Shelf:
    """A store's entries, which do as they are told."""

    def __init__(self) -> None:
        self.entries_by_name: dict[str, Seen[str]] = {}
        self.asked: list[Collection[str] | None] = []
        self.failure: str | None = None
        """After the first entry."""
        self.may_remove = True
        self.meanwhile = lambda: None
        """Done while it is listed, before anything is told."""
        self._ages = count(start=0, step=-1)

    def put(self, scope: str, name: str, num_bytes: int) -> None:
        self.entries_by_name[name] = Seen(name, scope_dir(scope), num_bytes, next(self._ages))

    def entries(self, scopes: Collection[str] | None) -> Iterator[Seen[str]]:
        self.asked.append(scopes)
        self.meanwhile()
        for entry in list(self.entries_by_name.values()):
            if scopes is None or entry.scope in scopes:
                yield entry
            if self.failure is not None:
                raise StoreError(self.failure)

    def remove(self, names: Sequence[str]) -> Iterator[tuple[str, bool]]:
        if not self.may_remove:
            raise StoreError("not allowed")
        for name in names:
            yield name, self.entries_by_name.pop(name, None) is not None


def looked(shelf: Shelf, scopes: Scopes = SCOPES) -> Ledger[str]:
    ledger = Ledger(scopes, shelf, PACE, "the shelf")
    ledger.look()
    return ledger


def write(ledger: Ledger[str], shelf: Shelf, name: str, num_bytes: int, scope: str = "small") -> bool:
    """As a store does."""
    if not ledger.admits(scope, name, num_bytes):
        return False
    shelf.put(scope, name, num_bytes)
    return True


def test_own_writes_count_at_once_and_never_pass_the_quota() -> None:
    """Nine of a hundred bytes and one of two hundred: the last has no room; a scope without a quota has."""
    shelf = Shelf()
    ledger = looked(shelf)
    assert all(write(ledger, shelf, f"{index}", 100) for index in range(9))
    assert not write(ledger, shelf, "large", 200)
    assert write(ledger, shelf, "other", 10**9, "free")
    stats = ledger.stats()["small"]
    assert (stats.num_entries, stats.used_bytes, stats.quota_bytes) == (9, 900, 1000)
    assert shelf.asked == [{scope_dir("small")}]


def test_what_could_not_be_written_does_not_count() -> None:
    """Ten times what a quota holds is admitted and not written."""
    ledger = looked(Shelf())
    for index in range(100):
        assert ledger.admits("small", f"{index}", 100)
        ledger.withdrew("small", 100)
    assert ledger.stats()["small"].used_bytes == 0


def test_the_scopes_own_oldest_leave() -> None:
    """Ten fill the quota. What is refused makes a look worth while, which takes the two oldest: down to nine
    tenths, and room for what was refused. Others lose nothing."""
    shelf = Shelf()
    ledger = looked(shelf)
    shelf.put("free", "other", 10**9)
    assert [write(ledger, shelf, f"{index}", 100) for index in range(11)] == [True] * 10 + [False]
    assert not write(ledger, shelf, "wide", 150)
    assert ledger.look() is False
    assert sorted(shelf.entries_by_name) == [*(str(index) for index in range(2, 10)), "other"]
    assert ledger.stats()["small"].num_evicted == 2
    assert write(ledger, shelf, "wide", 150)


def test_a_value_larger_than_the_quota_evicts_nothing() -> None:
    """It will never fit, so nobody has to leave for it."""
    shelf = Shelf()
    ledger = looked(shelf)
    assert write(ledger, shelf, "one", 900)
    assert not write(ledger, shelf, "huge", 1001)
    ledger.look()
    assert "one" in shelf.entries_by_name


def test_what_is_written_during_a_look_counts_once() -> None:
    """Whether the listing shows it or not."""
    shelf = Shelf()
    ledger = looked(shelf)
    shelf.meanwhile = lambda: (
        None if "shown" in shelf.entries_by_name else write(ledger, shelf, "shown", 100),
        ledger.admits("small", "not shown yet", 50),
    )  # type: ignore[assignment]
    ledger.look()
    assert ledger.stats()["small"].used_bytes == 150


def test_several_engines_are_over_by_what_each_has_written_since_its_look() -> None:
    """Two fill the quota side by side; a look of either sees both, and brings them below together."""
    shelf = Shelf()
    one, other = looked(shelf), looked(shelf)
    for index in range(12):
        write(one, shelf, f"one {index}", 100)
        write(other, shelf, f"other {index}", 100)
    assert len(shelf.entries_by_name) == 20
    assert one.look() is True  # when it began it did not know how much there is
    assert one.look() is False
    assert sum(entry.num_bytes for entry in shelf.entries_by_name.values()) == 900
    other.look()
    assert other.stats()["small"].used_bytes == 900
    assert not write(other, shelf, "wide", 200)


def test_a_restart_on_a_full_scope() -> None:
    """Before the first look a twentieth of the quota may be written; then it is known to be full."""
    shelf = Shelf()
    for index in range(9):
        shelf.put("small", f"{index}", 100)
    ledger = Ledger(SCOPES, shelf, PACE, "the shelf")
    assert [write(ledger, shelf, f"new {index}", 25) for index in range(3)] == [True, True, False]
    assert ledger.stats()["small"].used_bytes is None
    ledger.look()
    assert ledger.stats()["small"].used_bytes == 950
    assert not write(ledger, shelf, "wide", 100)


def test_a_look_that_fails_changes_nothing_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The listing breaks off half way: what was seen last holds, own writes go on counting, and the log has
    one line for each reason, and one when all is well again."""
    shelf = Shelf()
    for index in range(5):
        shelf.put("small", f"{index}", 100)
    ledger = looked(shelf)
    shelf.failure = "connection refused"
    caplog.set_level(logging.INFO)
    for _ in range(3):
        assert ledger._try_look() is False
    assert ledger.stats()["small"].used_bytes == 500
    assert write(ledger, shelf, "new", 400)
    assert not write(ledger, shelf, "wide", 200)
    shelf.failure = None
    ledger._try_look()
    assert ledger.stats()["small"].used_bytes == 800  # room for what was refused
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "Quotas of tenants: the shelf cannot be looked at, what was seen last holds: connection refused",
        "Quotas of tenants: the shelf can be looked at again",
    ]


def test_where_nothing_may_be_removed_puts_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Also what is counted still counts, and no look follows the other for nothing."""
    shelf = Shelf()
    ledger = looked(shelf)
    assert write(ledger, shelf, "one", 1000)
    shelf.may_remove = False
    assert ledger._try_look() is False
    assert "not allowed" in caplog.text
    assert not write(ledger, shelf, "two", 1)
    assert ledger.stats()["small"].used_bytes == 1000


def test_a_removed_scope_has_its_room_back() -> None:
    """At once, without a look."""
    shelf = Shelf()
    ledger = looked(shelf)
    assert write(ledger, shelf, "one", 1000)
    ledger.emptied("small")
    assert ledger.stats()["small"].used_bytes == 0
    assert write(ledger, shelf, "two", 1000)


def test_scopes_that_nobody_named_have_each_the_default_quota() -> None:
    """Then everything is listed; a scope that is named without a quota has none."""
    shelf = Shelf()
    ledger = looked(shelf, Scopes(ScopeRules(quota_bytes=100), {"free": ScopeRules()}))
    assert shelf.asked == [None]
    for scope in ("", "somebody"):
        assert write(ledger, shelf, f"one of {scope}", 90, scope)
        assert not write(ledger, shelf, f"two of {scope}", 90, scope)
    assert write(ledger, shelf, "three", 10**6, "free")
    assert ledger.stats().keys() == {"free"}


def test_without_quotas_there_is_nothing() -> None:
    """No ledger: nothing is listed."""
    assert ledger_of(Scopes(named={"free": ScopeRules(ttl_s=5)}), Shelf(), PACE, "the shelf") is None


def test_the_thread_looks_when_it_is_wanted() -> None:
    """At its start, and when something was refused: without waiting for an hour to pass."""
    shelf = Shelf()
    ledger = Ledger(SCOPES, shelf, PACE, "the shelf")
    ledger.start()
    try:
        wait_until(lambda: ledger.has_looked)
        assert write(ledger, shelf, "old", 1000)
        wait_until(lambda: "old" not in shelf.entries_by_name)
        wait_until(lambda: write(ledger, shelf, "new", 1000))
    finally:
        ledger.close()
