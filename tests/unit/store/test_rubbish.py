"""What nobody needs any more is removed, a bounded part at a time."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store import sweep
from anbar.adapters.store.layout import Layout, scope_dir
from anbar.adapters.store.quarantine import MAX_AGE_S, MAX_FILES
from anbar.adapters.store.rubbish import STALE_S, remove_some
from anbar.testing.store_contract import TIMEOUT_S, exists, get, put
from anbar.tier.store import Outcome
from tests.unit.store.test_sweep import NAMESPACE, VALUE, Rig, key


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store")
    yield rig
    rig.store.close()


def date(path: Path, when_s: float) -> None:
    os.utime(path, (when_s, when_s))


def test_what_dead_writers_left_goes(rig: Rig) -> None:
    """An old temporary file goes; a young one may still be in use, also where the clock was set meanwhile."""
    rig.fill(1)
    directory = rig.path(0).parent
    old, young = directory / ".dead-0.tmp", directory / ".alive-0.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    for by_s in (86_400.0, -86_400.0, 0.0):
        before_s = rig.time.wall_s
        rig.time.wall_s += by_s
        date(young, rig.time.wall_s - 5)
        date(old, before_s - 5)
        rig.sweeper.sweep()
        assert [old.exists(), young.exists()] == [True, True]
        rig.time.wall_s = before_s
    date(old, rig.time.wall_s - STALE_S - 1)
    rig.sweeper.sweep()
    assert [old.exists(), young.exists()] == [False, True]
    assert rig.left() == [0]


def test_empty_directories_go_once_they_are_old(rig: Rig) -> None:
    """A scope whose entries are all gone leaves nothing behind, and can be used again."""
    put(rig.store, key(1), VALUE, "tenant")
    rig.store.delete([key(1)], scope="tenant", timeout_s=TIMEOUT_S)
    directories = [path for path in rig.root.rglob("*") if path.is_dir()]
    for path in directories:
        date(path, rig.time.wall_s - 10)
    rig.sweeper.sweep()
    assert all(path.exists() for path in directories)
    for _ in range(3):  # the innermost first
        for path in filter(Path.exists, directories):
            date(path, rig.time.wall_s - STALE_S - 10)
        rig.sweeper.sweep()
    assert list((rig.root / "v1").iterdir()) == []
    assert put(rig.store, key(1), VALUE, "tenant") is Outcome.HIT


def test_what_a_removal_has_left_goes_in_parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process was killed while it removed a scope: sweeps remove the rest. Others' entries stay."""
    monkeypatch.setattr(sweep, "_LOOK_UNITS", 30)
    put(rig.store, key(99), VALUE, "other")
    for index in range(60):
        put(rig.store, key(index), VALUE, "tenant")
    scope = Layout(rig.root, NAMESPACE).namespace_dir / scope_dir("tenant")
    scope.rename(rig.root / "v1" / f".trash-{scope_dir('tenant')}-dead-0")
    num_left = len(list(rig.root.rglob("*.kv")))
    while num_left > 1:
        rig.sweeper.sweep()
        num_before, num_left = num_left, len(list(rig.root.rglob("*.kv")))
        assert 0 < num_before - num_left <= 30
    assert exists(rig.store, key(99), "other") is Outcome.HIT
    rig.sweeper.sweep()
    assert not list((rig.root / "v1").glob(".trash*"))


def test_sweeps_follow_no_links(rig: Rig, tmp_path: Path) -> None:
    """A scope's fan-out directory leads elsewhere: what looks like an entry there is not evicted, what looks
    like a dead writer's file stays."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = [elsewhere / f"{key(1).hex()}.kv", elsewhere / ".dead-0.tmp"]
    for path in kept:
        path.write_bytes(bytes(50_000))
        date(path, rig.time.wall_s - 86_400)
    rig.fill(1)
    directory = rig.path(0).parent
    rig.path(0).unlink()
    directory.rmdir()
    directory.symlink_to(elsewhere)
    rig.sweeper.sweep()
    assert all(path.exists() for path in kept)
    assert rig.sizes() == (0, 0)


def test_removing_stops_at_its_budget_and_at_what_is_gone(tmp_path: Path) -> None:
    """What is left of the budget says whether all is gone; a missing directory costs nothing much."""
    for index in range(5):
        (tmp_path / "tree" / str(index)).mkdir(parents=True)
        (tmp_path / "tree" / str(index) / "file").write_bytes(b"")
    assert remove_some(tmp_path / "tree", 4) == 0
    assert len(list((tmp_path / "tree").rglob("file"))) == 3
    assert remove_some(tmp_path / "tree", 100) > 0
    assert not (tmp_path / "tree").exists()
    assert remove_some(tmp_path / "tree", 5) > 0


def damage(rig: Rig, index: int, *, scope: str = "") -> None:
    """Store an entry, flip a bit and read it."""
    put(rig.store, key(index), VALUE, scope)
    path = rig.path(index)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert get(rig.store, key(index), len(VALUE), scope)[0] is Outcome.CORRUPT


def damaged(rig: Rig) -> list[Path]:
    return sorted((rig.root / "v1" / ".damaged").iterdir())


def test_damaged_entries_are_kept_aside(rig: Rig) -> None:
    """Byte by byte as they were found, with what is wrong; they are no entries, and no misses twice."""
    damage(rig, 1)
    put(rig.store, key(2), VALUE)
    os.truncate(rig.path(2), 100)
    assert get(rig.store, key(2), len(VALUE))[0] is Outcome.CORRUPT
    content, length = sorted(damaged(rig), key=lambda path: path.suffix)
    assert (content.suffix, length.suffix) == (".content", ".length")
    assert key(1).hex() in content.name
    assert len(content.read_bytes()) == 1000
    assert length.stat().st_size == 100
    assert get(rig.store, key(1), len(VALUE))[0] is Outcome.MISS
    rig.sweeper.sweep()
    assert rig.sizes() == (0, 0)


def test_few_damaged_entries_are_kept_and_not_for_ever(rig: Rig) -> None:
    """The last sixteen; after a week none."""
    for index in range(MAX_FILES + 4):
        damage(rig, index)
        rig.time.go_on(1)
    kept = [path.name for path in damaged(rig)]
    assert len(kept) == MAX_FILES
    assert key(3).hex() not in "".join(kept)
    assert key(4).hex() in kept[0]
    rig.time.go_on(MAX_AGE_S + 1)
    damage(rig, 50)
    assert len(damaged(rig)) == 1


def test_a_purged_tenant_leaves_nothing_aside(rig: Rig) -> None:
    """What was damaged of the scope goes with it; others' stays."""
    damage(rig, 1, scope="tenant")
    damage(rig, 2, scope="other")
    rig.store.delete_scope("tenant", timeout_s=TIMEOUT_S)
    (path,) = damaged(rig)
    assert key(2).hex() in path.name


def test_damaged_entries_are_kept_nowhere_else(rig: Rig, tmp_path: Path) -> None:
    """A link is in the place of the directory: it is removed, nothing is put or removed where it leads."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / f"1.0.{scope_dir('tenant')[:12]}.k.content"
    precious.write_bytes(b"keep")
    (rig.root / "v1").mkdir()
    (rig.root / "v1" / ".damaged").symlink_to(elsewhere)
    removal = rig.store.remove_scope("tenant", timeout_s=TIMEOUT_S)
    assert removal.outcome is Outcome.ERROR
    assert ".damaged was a symbolic link, and is gone" in removal.left
    (rig.root / "v1" / ".damaged").symlink_to(elsewhere)
    damage(rig, 1)
    assert key(1).hex() in damaged(rig)[0].name
    assert list(elsewhere.iterdir()) == [precious]


def test_damage_without_a_place_aside_is_still_a_miss(rig: Rig) -> None:
    """A file stands where the directory should be: the outcome is the same, and the next put mends it."""
    (rig.root / "v1").mkdir()
    (rig.root / "v1" / ".damaged").write_bytes(b"")
    damage(rig, 1)
    rig.path(1).unlink()
    shutil.rmtree(rig.root / "v1")
    assert put(rig.store, key(1), VALUE) is Outcome.HIT


def test_earlier_versions_leave_when_nobody_uses_them(rig: Rig) -> None:
    """An engine of an earlier release still reads one of its entries: that stays, the others go, and so do
    directories without any. A later version's directory, and what is none, are left alone."""
    old, used = (rig.root / "v0" / "namespace" / "scope" / name for name in ("old.kv", "used.kv"))
    kept = [rig.root / "v2" / "x" / "old.kv", rig.root / "v0.1" / "old.kv", rig.root / "notes" / "old.kv"]
    for path in (old, used, *kept, rig.root / "v0" / "left" / "old.kv"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(VALUE)
        date(path, rig.time.wall_s - 8 * 86_400)
    date(used, rig.time.wall_s - 86_400)
    rig.sweeper.sweep()
    assert [path.exists() for path in (old, used, *kept)] == [False, True, True, True, True]
    date(used, rig.time.wall_s - 8 * 86_400)
    rig.sweeper.sweep()
    for path in (rig.root / "v0").rglob("*"):
        date(path, rig.time.wall_s - STALE_S - 1)
    rig.sweeper.sweep()
    assert not used.exists()
    assert not (rig.root / "v0" / "left").exists()
