"""Keys as names of empty files: a set that processes share."""

import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.store.key_directory import KeyDirectory


def key(number: int) -> bytes:
    """As long as an engine's."""
    return number.to_bytes(32, "big")


def test_what_one_adds_another_finds(tmp_path: Path) -> None:
    """Two engines on one directory; scopes are apart."""
    one, other = KeyDirectory(tmp_path, 100), KeyDirectory(tmp_path, 100)
    assert not other.use("a", key(1))
    assert one.add("a", key(1)) == []
    assert other.use("a", key(1))
    assert not other.use("b", key(1))
    one.add("a", key(1))
    assert len(other) == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_the_longest_unused_go(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[bool, int]]
) -> None:
    """Against a naive ordered set: the same keys are there after each call, and the same ones went."""
    directory = KeyDirectory(tmp_path_factory.mktemp("keys"), 5)
    naive: OrderedDict[int, None] = OrderedDict()
    for is_use, number in calls:
        if is_use:
            assert directory.use("", key(number)) is (number in naive)
            if number in naive:
                naive.move_to_end(number)
            continue
        naive[number] = None
        naive.move_to_end(number)
        gone = [naive.popitem(last=False)[0] for _ in range(len(naive) - 5)]
        assert directory.add("", key(number)) == [key(one) for one in gone]
        assert len(directory) == len(naive)


def test_many_keys_go_in_batches(tmp_path: Path) -> None:
    """Counting is rare: until then a few more than fit are there."""
    directory = KeyDirectory(tmp_path, 160)
    gone = [one for number in range(200) for one in directory.add("", key(number))]
    assert 160 <= len(directory) <= 170
    assert gone == [key(number) for number in range(len(gone))]


def test_directory_that_is_gone(tmp_path: Path) -> None:
    """An error, not a miss: a store that cannot be reached is another thing than one without a key."""
    directory = KeyDirectory(tmp_path / "store", 10)
    (tmp_path / "store").mkdir()
    directory.add("", key(1))
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(FileNotFoundError):
        directory.use("", key(1))
    with pytest.raises(FileNotFoundError):
        directory.add("", key(2))
