"""The quota contract, on each store that needs no service."""

from pathlib import Path

import pytest

from anbar.testing.quota_contract import Place, QuotaContract
from tests.unit.store.quota_places import Several, Single, directory


class TestFiles(QuotaContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Single(directory(tmp_path))


class TestReplicated(QuotaContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Several([directory(tmp_path, name) for name in "ab"])


class TestLayered(QuotaContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Several([directory(tmp_path, name) for name in ("near", "far")], are_layers=True)
