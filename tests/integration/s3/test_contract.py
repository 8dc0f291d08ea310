"""The store contract on a real S3 server."""

import pytest

from anbar.adapters.store.s3 import S3Store
from anbar.testing.store_contract import StoreContract
from tests.integration.s3.conftest import Opener


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, opener: Opener) -> S3Store:
        return opener()
