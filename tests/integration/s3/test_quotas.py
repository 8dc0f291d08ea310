"""Quotas of scopes on a real S3 server, and on a directory over one."""

import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.adapters.store.ledger import Ledger
from anbar.adapters.store.s3 import Place as BucketPlace
from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from anbar.adapters.store.s3.census import Census
from anbar.adapters.store.s3.objects import Limits, Objects
from anbar.testing.quota_contract import FULL_SCOPE, QUOTAS, SMALL, Place, QuotaContract, fill, key
from anbar.testing.store_contract import TIMEOUT_S
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, Store
from tests.ports import free_port
from tests.s3_server import READER_ID, READER_SECRET, S3Server
from tests.unit.store.quota_places import ONCE, Opener, Several, Single, directory, look


def bucket(config: S3StoreConfig) -> Opener:
    """A store that looks once by itself."""

    def opened(scopes: Scopes, namespace: bytes) -> Store:
        store = S3Store(replace(config, scopes=scopes, pace=ONCE), namespace)
        assert store.open() == ""
        return store

    return opened


class TestS3(QuotaContract):
    @pytest.fixture
    def place(self, config: S3StoreConfig) -> Place:
        return Single(bucket(config))


class TestDirectoryOverS3(QuotaContract):
    @pytest.fixture
    def place(self, config: S3StoreConfig, tmp_path: Path) -> Place:
        return Several([directory(tmp_path, "near"), bucket(config)], are_layers=True)


def test_only_scopes_that_are_bounded_are_listed(config: S3StoreConfig) -> None:
    """One of two scopes has a quota: what the other holds is not asked for. What leaves is told."""
    scopes = Scopes(named={SMALL: QUOTAS.of(SMALL), "other": ScopeRules(ttl_s=5000.0)})
    with Single(bucket(config)).opened(scopes) as store:
        assert fill(store) == FULL_SCOPE
        assert fill(store, scope="other") == [Outcome.HIT] * 5
        assert isinstance(store, S3Store)
        assert store._ledger is not None
        listed = list(store._ledger._listing.entries(store._ledger._dirs))
        assert len(listed) == 4
        assert all(entry.age < 0 for entry in listed)  # the later it was stored, the less
        look(store)
        (gone,) = store.take_evicted()
        assert store.exists([gone], scope=SMALL, timeout_s=TIMEOUT_S) == [Outcome.MISS]
        assert gone in [key(index) for index in range(4)]


def census_of(store: Store, place: BucketPlace, timeout_s: float = TIMEOUT_S) -> Ledger[str]:
    """The ledger of an open store, which from now on looks at another place, or as another user."""
    assert isinstance(store, S3Store)
    ledger = store._ledger
    assert ledger is not None
    assert isinstance(ledger._listing, Census)
    ledger._listing._objects = Objects(Limits(5 * 1024**2, None, time.time))
    ledger._listing._objects.connect(place, timeout_s)
    return ledger


def test_where_nothing_may_be_removed(
    config: S3StoreConfig, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who may only read and list: what is there is known, nothing leaves, and the log says why."""
    with Single(bucket(config)).opened(QUOTAS) as store:
        assert fill(store) == FULL_SCOPE
        reader = replace(config.place, credentials_file=s3.credentials(READER_ID, READER_SECRET))
        ledger = census_of(store, reader)
        assert ledger._try_look() is False
        assert "Quotas of tenants" in caplog.text
        assert "AccessDenied" in caplog.text
        stats = store.stats().scopes[SMALL]
        assert (stats.num_entries, stats.num_evicted) == (4, 0)


def test_a_server_that_is_away_while_it_is_listed(
    config: S3StoreConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """What was seen last holds, and the log says so, and that it is over."""
    caplog.set_level(logging.INFO)
    with Single(bucket(config)).opened(QUOTAS) as store:
        assert fill(store) == FULL_SCOPE
        nobody = replace(config.place, endpoint=f"http://127.0.0.1:{free_port()}")
        ledger = census_of(store, nobody, timeout_s=0.5)
        assert ledger._try_look() is False
        assert "cannot be looked at, what was seen last holds" in caplog.text
        assert store.stats().scopes[SMALL].num_entries == 4
        census_of(store, config.place)
        ledger._try_look()
        assert "can be looked at again" in caplog.text
        assert store.stats().scopes[SMALL].num_entries == 3
