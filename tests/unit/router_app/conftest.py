"""For the tests of the router's parts."""

from collections.abc import Iterator

import pytest
from tests.waiting import PATIENCE_S

from anbar.apps.router import prompts


@pytest.fixture(scope="session", autouse=True)
def patient_tokenizing() -> Iterator[None]:
    """No request is routed by load only because an engine's tokens came late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "REMOTE_TIMEOUT_S", PATIENCE_S)
        yield
