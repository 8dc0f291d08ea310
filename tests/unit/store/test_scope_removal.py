"""Removing a scope from a directory: all of it, nothing else, and what could not be removed is told."""

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.layout import scope_dir
from anbar.adapters.store.scope_removal import Removal, ScopeRemoval
from anbar.testing.store_contract import TIMEOUT_S, exists, put
from anbar.tier.store import Outcome
from tests.unit.store.settled import QUIET, settled

MINE, OTHER = scope_dir("tenant"), scope_dir("other")
_TOKENS = itertools.count()


def fill(version_dir: Path, scope: str = MINE, num: int = 6, namespace: str = "n") -> None:
    directory = version_dir / namespace / scope / "ab"
    directory.mkdir(parents=True)
    for index in range(num):
        (directory / f"{index}.kv").write_bytes(b"value")


def remove(version_dir: Path, num_files: int = 1_000_000) -> Removal:
    """The time is over after so many files."""
    asked = itertools.count()
    removal = ScopeRemoval(version_dir, MINE, f"token-{next(_TOKENS)}")
    return removal.run(lambda: next(asked) < num_files)


def left(version_dir: Path) -> list[Path]:
    return sorted(version_dir.rglob("*.kv"))


def test_nothing_is_left_in_every_namespace(tmp_path: Path) -> None:
    """And nothing of others is touched."""
    for namespace in ("n", "m"):
        fill(tmp_path, MINE, namespace=namespace)
        fill(tmp_path, OTHER, namespace=namespace)
    assert remove(tmp_path) == Removal(Outcome.HIT)
    assert len(left(tmp_path)) == 12
    assert {path.parts[-3] for path in left(tmp_path)} == {OTHER}
    assert not list(tmp_path.glob(".trash*"))
    assert remove(tmp_path) == Removal(Outcome.MISS)


def test_a_store_removes_all_before_it_says_so(tmp_path: Path) -> None:
    """Nothing is left to a thread that ends with the process."""
    store = settled(FilesStore(FilesConfig(tmp_path / "store", "id", QUIET), b"model"))
    put(store, b"k" * 36, b"value", "tenant")
    (directory,) = (path.parent for path in tmp_path.rglob("*.kv"))
    for index in range(500):
        (directory / f"{index}.kv").touch()
    assert store.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert left(tmp_path) == []
    assert exists(store, b"k" * 36, "tenant") is Outcome.MISS
    store.close()


def test_what_is_left_when_the_time_is_over(tmp_path: Path) -> None:
    """Nothing can be read; how many files are left and where is told, and the next removal takes them. What
    waits of another scope is not counted."""
    fill(tmp_path, MINE)
    fill(tmp_path, MINE, namespace="m")
    (tmp_path / f".trash-{OTHER}-dead-0").mkdir()
    late = remove(tmp_path, num_files=4)
    assert late.outcome is Outcome.TIMEOUT
    assert f"8 files are left in {tmp_path}/.trash-{MINE}-*" in late.left
    assert not [path for path in left(tmp_path) if ".trash-" not in str(path)]
    assert remove(tmp_path) == Removal(Outcome.HIT)
    assert left(tmp_path) == []
    assert [path.name for path in tmp_path.glob(".trash*")] == [f".trash-{OTHER}-dead-0"]


def test_what_an_earlier_release_left_goes_too(tmp_path: Path) -> None:
    """Its name does not tell whose it was."""
    fill(tmp_path, MINE)
    (tmp_path / "n").rename(tmp_path / ".trash-0123456789abcdef-7")
    assert remove(tmp_path) == Removal(Outcome.HIT)
    assert left(tmp_path) == []


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A directory beside the store; nothing in it may change."""
    directory = tmp_path / "precious"
    fill(directory)
    fill(directory, "deep", namespace=MINE)
    before = sorted(directory.rglob("*"))
    yield directory
    assert sorted(directory.rglob("*")) == before


@pytest.mark.parametrize("place", [f"n/{MINE}", f"n/{MINE}/ab", f"n/{MINE}/ab/0.kv", f".trash-{MINE}-dead-0"])
def test_a_link_is_removed_as_a_link(tmp_path: Path, precious: Path, place: str) -> None:
    """What it leads to stays, and it is told, since it may be KV that someone has moved there."""
    version_dir = tmp_path / "v1"
    link = version_dir / place
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)
    told = remove(version_dir)
    assert told.outcome is Outcome.ERROR
    assert f"was a symbolic link, and is gone; what is in {precious} was left" in told.left
    assert not [path for path in version_dir.rglob("*") if path.is_symlink()]
    assert remove(version_dir).outcome is not Outcome.ERROR


@pytest.mark.parametrize("place", ["v1/n", "v1"])
def test_a_linked_namespace_is_not_followed(tmp_path: Path, precious: Path, place: str) -> None:
    """It stays, since it is not the scope's; and it is told."""
    link = tmp_path / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(precious)
    told = remove(tmp_path / "v1")
    assert (told.outcome, f"{link} is a symbolic link" in told.left) == (Outcome.ERROR, True)
    assert link.is_symlink()


def test_a_linked_namespace_without_the_scope(tmp_path: Path) -> None:
    """Nothing is left there, so nothing is told."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "n").symlink_to(tmp_path / "elsewhere")
    assert remove(tmp_path / "v1") == Removal(Outcome.MISS)


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it by name with the reason, the rest counted; what can be removed is."""
    fill(tmp_path, num=10)
    unlink = os.unlink

    def refuse(path: str, **options: Any) -> None:
        if path in {f"{index}.kv" for index in range(5)}:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    for _ in range(2):
        told = remove(tmp_path)
        assert told.outcome is Outcome.ERROR
        assert told.left.count("kv: Operation not permitted") == 3
        assert "and 2 more" in told.left
        assert len(left(tmp_path)) == 5
    monkeypatch.undo()
    assert remove(tmp_path) == Removal(Outcome.HIT)


def test_what_cannot_be_renamed_or_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that may not be changed."""
    fill(tmp_path)

    def refuse(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "rename", refuse)
    assert remove(tmp_path) == Removal(Outcome.ERROR, f"{tmp_path}/n/{MINE}: Read-only file system")
    monkeypatch.undo()
    monkeypatch.setattr(os, "fwalk", refuse)
    told = remove(tmp_path)
    assert told.outcome is Outcome.ERROR
    assert told.left.endswith(": Read-only file system")
