"""Two copies of each entry on three plain servers: one of them is killed, comes back empty, and hangs."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.composed import ComposedStore
from anbar.apps.stores import open_store
from anbar.config.load import load
from anbar.config.store_checks import read_store
from anbar.config.stores import store_settings
from anbar.testing.store_contract import TIMEOUT_S
from anbar.tier.store import Outcome, PutItem
from tests.integration.valkey.servers import Server, server
from tests.waiting import wait_until

KEYS = [bytes([number]) * 36 for number in range(40)]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    with server(tmp_path / "a") as a, server(tmp_path / "b") as b, server(tmp_path / "c") as c:
        yield [a, b, c]


@pytest.fixture
def store(tmp_path: Path, servers: list[Server]) -> Iterator[ComposedStore]:
    """From a file. The third server is the one that fails; calls on it end soon, calls on the others may
    take their time."""
    ids = zip("abc", servers, (TIMEOUT_S, TIMEOUT_S, 1.0), strict=True)
    members = [
        f"{{kind: valkey, id: {id}, timeout_s: {timeout_s}, valkey: {{nodes: ['{one.node}']}}}}"
        for id, one, timeout_s in ids
    ]
    path = tmp_path / "anbar.yaml"
    path.write_text(f"cache: {{store: {{kind: replicated, members: [{', '.join(members)}]}}}}")
    config = load(path).config
    opened = open_store(read_store(store_settings(config.cache.store, config.state_dir)), b"model")
    assert isinstance(opened, ComposedStore)
    yield opened
    opened.close()


def put_all(store: ComposedStore) -> None:
    items = [PutItem(key, memoryview(key * 100)) for key in KEYS]
    assert store.put(items, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)


def get_all(store: ComposedStore) -> None:
    """Every entry is there, and right."""
    buffers = [bytearray(3600) for _ in KEYS]
    views = [memoryview(buffer) for buffer in buffers]
    assert store.get_into(KEYS, views, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)
    assert all(bytes(buffer) == key * 100 for key, buffer in zip(KEYS, buffers, strict=True))


def test_one_server_of_three_may_fail(store: ComposedStore, servers: list[Server]) -> None:
    """Killed: everything is found. Back and empty: filled again by what is read. Stopped: found still, and
    written; it goes on: used again. All without a restart of ours."""
    put_all(store)
    third = servers[2]
    third.kill()
    get_all(store)
    put_all(store)
    third.start()

    def is_filled() -> bool:
        get_all(store)
        time.sleep(0.05)
        return bool(third.names())

    wait_until(is_filled)
    third.signal(signal.SIGSTOP)
    get_all(store)
    put_all(store)
    third.signal(signal.SIGCONT)
    num_names = len(third.names())

    def is_used() -> bool:
        store.put(
            [PutItem(bytes([number]), memoryview(b"v")) for number in range(99)],
            scope="new",
            timeout_s=TIMEOUT_S,
        )
        time.sleep(0.05)
        return len(third.names()) > num_names

    wait_until(is_used)
    get_all(store)
