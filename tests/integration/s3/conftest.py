"""A real S3 server, and stores on it."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from anbar.testing.store_contract import TIMEOUT_S
from anbar.tier.store import Outcome
from tests.ceph_server import CephServer
from tests.s3_server import S3Server, running_s3

Opener = Callable[..., S3Store]
SERVER = CephServer if os.environ.get("ANBAR_S3_SERVER") == "ceph" else S3Server
collect_ignore = [] if SERVER is CephServer else ["test_ceph.py"]
FAILED = (Outcome.ERROR, Outcome.TIMEOUT)
"""Which of both it is depends on what comes first, the end of the attempts or of the deadline."""

_prefixes = (f"test/{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server that all tests share, each with a prefix of its own; none may harm it."""
    with running_s3(tmp_path_factory.mktemp("s3"), SERVER) as server:
        yield server


@pytest.fixture
def config(s3: S3Server) -> S3StoreConfig:
    """A store's configuration with a prefix of its own."""
    return S3StoreConfig(s3.place(next(_prefixes)), "s3-test", timeout_s=TIMEOUT_S, part_bytes=5 * 1024**2)


@pytest.fixture
def opener(config: S3StoreConfig) -> Iterator[Opener]:
    """Opens stores on one prefix; all are closed at the end."""
    opened: list[S3Store] = []

    def open_store(
        namespace: bytes = b"model", now_s: Callable[[], float] | None = None, **changes: object
    ) -> S3Store:
        changed = replace(config, **changes)  # type: ignore[arg-type]
        store = S3Store(changed, namespace) if now_s is None else S3Store(changed, namespace, now_s)
        opened.append(store)
        assert store.open() == ""
        return store

    yield open_store
    for store in opened:
        store.close()
