"""Entries that nobody has used for some time are gone, whatever people do to the clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.sweep import Bounds
from anbar.testing.store_contract import exists, put
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome
from tests.unit.store.settled import ManualTime
from tests.unit.store.test_sweep import VALUE, Rig, key

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store", Bounds(free_fraction=0.0, ttl_s=HOUR_S))
    yield rig
    rig.store.close()


def test_unused_for_too_long_is_a_miss(rig: Rig) -> None:
    """Also before any sweep; then the sweep removes and reports it. What was read meanwhile stays."""
    rig.fill(2)
    rig.time.go_on(HOUR_S / 2)
    assert rig.read(1) is Outcome.HIT
    rig.time.go_on(HOUR_S / 2 + 1)
    assert [exists(rig.store, key(0)), exists(rig.store, key(1))] == [Outcome.MISS, Outcome.HIT]
    assert [rig.read(0), rig.read(1)] == [Outcome.MISS, Outcome.HIT]
    assert rig.path(0).exists()
    rig.sweeper.sweep()
    assert rig.sweeper.take_evicted() == [key(0)]
    assert not list(rig.root.rglob(f"{key(0).hex()}.kv"))
    assert rig.left() == [1]


def test_a_scope_has_a_time_of_its_own(tmp_path: Path) -> None:
    """One scope lives for half of the store's hour, another for two: each entry ends by its own scope's time,
    for readers and for the sweep."""
    scopes = Scopes(named={"brief": ScopeRules(ttl_s=HOUR_S / 2), "long": ScopeRules(ttl_s=2 * HOUR_S)})
    rig = Rig(tmp_path / "store", Bounds(free_fraction=0.0, ttl_s=HOUR_S, scopes=scopes))
    for scope in ("brief", "", "long"):
        assert put(rig.store, key(0), VALUE, scope) is Outcome.HIT
    for hours, left in ((0.75, ["", "long"]), (0.75, ["long"]), (1.0, [])):
        rig.time.go_on(hours * HOUR_S)
        there = [scope for scope in ("brief", "", "long") if exists(rig.store, key(0), scope) is Outcome.HIT]
        assert there == left
        rig.sweeper.sweep()
        assert len(list(rig.root.rglob("*.kv"))) == len(left)
    rig.store.close()


def test_what_is_stored_again_lives_again(rig: Rig) -> None:
    """An expired entry that no sweep has removed yet is put again."""
    rig.fill(1)
    rig.time.go_on(2 * HOUR_S)
    assert exists(rig.store, key(0)) is Outcome.MISS
    assert put(rig.store, key(0), VALUE) is Outcome.HIT
    assert rig.read(0) is Outcome.HIT


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
def test_setting_the_clock_empties_nothing_and_keeps_nothing(rig: Rig, by_s: float) -> None:
    """The system's clock is set a day forward or back: what was used a minute ago is there, for this engine
    and for one that starts now, and is gone an hour later."""
    rig.fill(2)
    rig.sweeper.sweep()
    rig.time.set_clock(by_s)
    late = rig.open(b"model")
    rig.sweeper.sweep()
    for store in (rig.store, late):
        assert exists(store, key(0)) is Outcome.HIT
    assert put(late, key(2), VALUE) is Outcome.HIT
    rig.time.go_on(1.3 * HOUR_S)
    for store in (rig.store, late):
        assert [exists(store, key(index)) for index in range(3)] == [Outcome.MISS] * 3
    rig.sweeper.sweep()
    assert not list(rig.root.rglob("*.kv"))
    late.close()


def test_time_passes_while_no_engine_runs(rig: Rig) -> None:
    """Everything was stopped for a day: what was left has expired when an engine starts, on the same boot or
    after a reboot."""
    rig.fill(1)
    rig.sweeper.sweep()
    rig.store.close()
    rig.time.go_on(DAY_S)
    for boot, steady_s in [(rig.time.boot, rig.time.steady_s), ("another", 20.0)]:
        rig.time.boot, rig.time.steady_s = boot, steady_s
        late = rig.open(b"model")
        assert exists(late, key(0)) is Outcome.MISS
        late.close()


def test_the_clock_comes_round(tmp_path: Path) -> None:
    """A clock that was a day behind and was set right: the store's time follows, a tenth faster than time
    passes, and never goes backward; after ten days it is the same."""
    time = ManualTime()
    clock = StoreClock(tmp_path, time.source())
    time.set_clock(DAY_S)
    before_s = clock.now_s()
    for _ in range(11 * 24):
        time.go_on(HOUR_S)
        clock.sync(write=True)
        passed_s, before_s = clock.now_s() - before_s, clock.now_s()
        assert 0.89 * HOUR_S <= passed_s <= 1.11 * HOUR_S
    assert clock.now_s() == pytest.approx(time.wall_s, abs=1.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "null",
        '{"boot": "a-boot", "steady_s": NaN, "now_s": 1.0}',
        '{"boot": "a-boot", "steady_s": 1.0, "now_s": Infinity}',
        '{"boot": "a-boot", "steady_s": 1e9, "now_s": 5.0}',
        '{"boot": "a-boot", "steady_s": 1.0, "now_s": -5.0}',
        '{"boot": "other", "steady_s": 1.0, "now_s": 5.0}',
        "\xff",
    ],
)
def test_a_damaged_clock_file_is_no_clock(tmp_path: Path, text: str) -> None:
    """Or one of another machine or boot: the store begins by the system's clock, and mends the file."""
    time = ManualTime()
    (tmp_path / ".clock").write_bytes(text.encode("latin-1"))
    clock = StoreClock(tmp_path, time.source())
    clock.sync(write=True)
    assert clock.now_s() == pytest.approx(time.wall_s)
    other = StoreClock(tmp_path, time.source())
    time.set_clock(DAY_S)
    other.sync(write=False)
    assert other.now_s() == pytest.approx(clock.now_s(), abs=1.0)
