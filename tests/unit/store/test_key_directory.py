"""Keys as names of empty files: a set that processes share."""

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.store.key_directory import KeyDirectory
from anbar.sim.engine.chunks import Chunks, ChunkTable
from anbar.sim.engine.shared import Sent, SharedTier
from anbar.tier.breaker import Ticket
from anbar.tier.lookups import Question
from anbar.tier.store import Outcome
from anbar.tier.transfers import Call, Direction


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


@pytest.mark.parametrize("kind", [KeyDirectory, None])
@given(calls=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_the_longest_unused_go(
    tmp_path_factory: pytest.TempPathFactory, kind: type[KeyDirectory] | None, calls: list[tuple[bool, int]]
) -> None:
    """Against a naive ordered set, on disk and in the engine model's own table: the same keys are there after
    each call, and the same ones went."""
    chunks: Chunks = ChunkTable(5) if kind is None else kind(tmp_path_factory.mktemp("keys"), 5)
    naive: OrderedDict[int, None] = OrderedDict()
    for is_use, number in calls:
        if is_use:
            assert chunks.use("", key(number)) is (number in naive)
            if number in naive:
                naive.move_to_end(number)
            continue
        naive[number] = None
        naive.move_to_end(number)
        gone = [naive.popitem(last=False)[0] for _ in range(len(naive) - 5)]
        assert list(chunks.add("", key(number))) == [key(one) for one in gone]


def test_engines_of_two_processes(tmp_path: Path) -> None:
    """What one stored through its tier the other finds; a directory that is gone is an error, not a miss."""
    (tmp_path / "store").mkdir()
    one, other = (SharedTier(KeyDirectory(tmp_path / "store", 9)) for _ in range(2))
    outcomes: list[list[Outcome]] = []
    for tier, call in (
        (one, Call(1, Direction.STORE, "s", (key(1),), (0,))),
        (other, Question("s", (key(1), key(2)))),
        (other, Call(2, Direction.LOAD, "s", (key(1),), (0,))),
    ):
        results: list[Any] = []
        asking, seconds = tier.begin(call, 1, {})
        tier.submit(Sent(call, asking, seconds, seconds, Ticket(0), results))
        tier.advance(0.0)
        outcomes += [result.outcomes for result in results]
    assert outcomes == [[Outcome.HIT], [Outcome.HIT, Outcome.MISS], [Outcome.HIT]]
    shutil.rmtree(tmp_path / "store")
    results = []
    asking, seconds = other.begin(Question("s", (key(1),)), 1, {})
    other.submit(Sent(Question("s", (key(1),)), asking, seconds, seconds, Ticket(0), results))
    other.advance(0.0)
    assert results[0].outcomes == [Outcome.ERROR]


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
