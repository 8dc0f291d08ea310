"""The store contract on a real S3 server."""

import pytest

from anbar.adapters.store.s3 import S3Store
from anbar.testing.store_contract import StoreContract
from anbar.tier.store import Store
from tests.integration.s3.conftest import Opener
from tests.unit.store.encrypted import encrypted


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, opener: Opener) -> S3Store:
        return opener()


class TestEncryptedS3(StoreContract):
    @pytest.fixture
    def store(self, opener: Opener) -> Store:
        return encrypted(opener())
