"""What a Ceph has beside a gateway, and how the store bears that it fails."""

import pytest

from anbar.adapters.store.s3 import S3Store
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, get, put
from anbar.tier.store import Outcome
from tests.ceph_server import CephServer
from tests.integration.s3.conftest import FAILED, Opener
from tests.s3_server import S3Server
from tests.waiting import wait_until


@pytest.fixture
def ceph(s3: S3Server) -> CephServer:
    assert isinstance(s3, CephServer)
    return s3


@pytest.fixture
def store(opener: Opener) -> S3Store:
    store = opener()
    assert put(store, KEY, VALUE) is Outcome.HIT
    return store


def test_a_frozen_osd(ceph: CephServer, store: S3Store) -> None:
    """The gateway takes requests and has nobody who could answer them: each call is late by no more than its
    deadline. The OSD goes on: so does the store, without being opened again."""
    ceph.freeze_osd()
    try:
        buffer = bytearray(len(VALUE))
        assert store.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=0.5) == [Outcome.TIMEOUT]
        assert store.exists([KEY], scope="", timeout_s=0.5)[0] in (*FAILED, Outcome.HIT)
    finally:
        ceph.thaw_osd()
    wait_until(lambda: get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE))
    assert put(store, OTHER, VALUE) is Outcome.HIT


def test_a_killed_gateway(ceph: CephServer, store: S3Store) -> None:
    """SIGKILL to the gateway: calls fail, none is a miss. Another one comes: what was stored is there."""
    ceph.kill()
    assert get(store, KEY, len(VALUE))[0] in FAILED
    assert store.exists([KEY], scope="", timeout_s=TIMEOUT_S)[0] in FAILED
    ceph.start()
    wait_until(lambda: get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE))
