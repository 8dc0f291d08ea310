"""The writer of the block log and its keyed names."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.telemetry.test_rotating_file import largest_file
from tests.waiting import PATIENCE_S

from anbar.adapters.telemetry.block_ids import KEY_FILE, KeyedIds, record_key
from anbar.adapters.telemetry.block_log import (
    MAX_QUEUED,
    MAX_QUEUED_TOKENS,
    BlockLogWriter,
    Recorded,
    recorded,
)
from anbar.adapters.telemetry.rotating_file import RotatingFile, rotated_files
from anbar.core.block_log import BlockLogEntry, BlockLogReader
from anbar.core.errors import StackError
from anbar.core.ids import ChainHash, RequestId
from anbar.core.request import RouteQuery

IDS = KeyedIds(b"k" * 32)


def item(number: int, num_tokens: int = 40) -> Recorded:
    tokens = tuple(range(1000, 1000 + num_tokens))
    query = RouteQuery(RequestId("r"), "m", tokens, num_tokens)
    entry = BlockLogEntry(timestamp=number, input_length=num_tokens, block_size=16, model="m")
    return recorded(entry, "m", query)


class Troubles(list[str]):
    """What the writer said, and when it said the n-th thing."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Semaphore(0)

    def __call__(self, text: str) -> None:
        self.append(text)
        self.said.release()

    def wait(self) -> None:
        assert self.said.acquire(timeout=PATIENCE_S)


def become(done: Callable[[], bool]) -> None:
    """A stop waits for seconds only, this as long as it takes."""
    until_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def entries(path: Path) -> list[BlockLogEntry]:
    reader = BlockLogReader()
    found = list(
        reader.entries(line for file in rotated_files(path) for line in file.read_bytes().splitlines())
    )
    assert reader.num_skipped == 0
    return found


def test_what_is_offered_is_written_in_order(tmp_path: Path) -> None:
    """A thousand requests over several files, each with an id for each of its blocks."""
    path = tmp_path / "log"
    writer = BlockLogWriter(RotatingFile(path, 64 * 1024, 1000), IDS, Troubles())
    writer.start()
    for number in range(1000):
        writer.offer(item(number))
    become(lambda: writer.stats.num_written == 1000)
    writer.stop()
    found = entries(path)
    assert [entry.timestamp for entry in found] == list(range(1000))
    assert {tuple(entry.hash_ids) for entry in found} == {tuple(found[0].hash_ids)}
    assert len(found[0].hash_ids) == 3
    assert len(rotated_files(path)) > 1
    assert (writer.stats.num_written, writer.stats.num_dropped, writer.stats.num_failed) == (1000, 0, 0)


class Held(RotatingFile):
    """A disk that hangs until it is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1 << 20, 2)
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def write(self, lines: bytes) -> None:
        self.entered.set()
        assert self.let_go.wait(PATIENCE_S)
        super().write(lines)


@pytest.mark.parametrize(("num_tokens", "room"), [(1, MAX_QUEUED), (MAX_QUEUED_TOKENS // 4, 4)])
def test_a_disk_that_hangs_costs_lines_and_blocks_nobody(tmp_path: Path, num_tokens: int, room: int) -> None:
    """While one write hangs, only so many requests wait, and only so many tokens; the rest is counted. Then
    what waited is written."""
    file = Held(tmp_path / "log")
    writer = BlockLogWriter(file, IDS, Troubles())
    writer.start()
    writer.offer(item(0))
    assert file.entered.wait(PATIENCE_S)
    one = item(1, num_tokens)
    for _ in range(room + 7):
        writer.offer(one)
    assert writer.stats.num_dropped == 7
    file.let_go.set()
    become(lambda: writer.stats.num_written == room + 1)
    writer.stop()
    assert len(entries(tmp_path / "log")) == room + 1


def test_a_full_disk_is_told_once_and_the_end_of_it(tmp_path: Path) -> None:
    """Of a row of failures the first is told; every lost request is counted; afterwards lines come again."""
    troubles = Troubles()
    writer = BlockLogWriter(RotatingFile(tmp_path / "log", 1 << 20, 2), IDS, troubles)
    with largest_file(0):
        writer.start()
        for number in range(5):
            writer.offer(item(number))
        troubles.wait()
        become(lambda: writer.stats.num_failed == 5)
    writer.offer(item(7))
    troubles.wait()
    writer.stop()
    assert troubles == ["File too large", ""]
    assert [entry.timestamp for entry in entries(tmp_path / "log")] == [7]


def test_names_depend_on_the_key_alone() -> None:
    """The same key gives the same names on every router, another key others; kinds do not mix; numbers fit
    into 63 bits."""
    other = KeyedIds(b"o" * 32)
    chain = [ChainHash(1), ChainHash((1 << 64) - 1)]
    assert IDS.blocks(chain) == KeyedIds(b"k" * 32).blocks(chain)
    assert set(IDS.blocks(chain)).isdisjoint(other.blocks(chain))
    assert all(0 <= number < 1 << 63 for number in IDS.blocks(chain))
    assert IDS.name("session", b"x") != IDS.name("scope", b"x") != other.name("scope", b"x")


def test_shares_are_even() -> None:
    """Of 4,000 names a quarter lies below each quarter, within five standard deviations (27 names each)."""
    shares = [IDS.share(IDS.name("session", b"%d" % number)) for number in range(4000)]
    for quarter in (0.25, 0.5, 0.75):
        assert abs(sum(share < quarter for share in shares) - 4000 * quarter) < 5 * 32


def test_the_key_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    """32 random bytes, mode 0600; found again; refused when others can read it or when it is damaged."""
    state = tmp_path / "state"
    key = record_key(state)
    assert len(key) == 32
    assert record_key(state) == key != record_key(tmp_path / "other")
    path = state / KEY_FILE
    assert [entry.name for entry in state.iterdir()] == [KEY_FILE]
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(StackError, match="chmod 600"):
        record_key(state)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(StackError, match="no key of 32 bytes"):
        record_key(state)
