"""Fixtures shared by the integration tests."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.emulator import write_tiny_model
from anbar.apps.router import prompts
from tests.integration.stack import Setup, Stack, running_stack
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the tiny tokenizer: the model's root, for engines and router alike."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "fake-model")


@pytest.fixture(scope="session", autouse=True)
def patient_tokenizing() -> Iterator[None]:
    """No request is routed by load only because an engine's tokens came late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "REMOTE_TIMEOUT_S", PATIENCE_S)
        yield


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory with a short name: the path of a Unix socket has at most 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="anbar-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """Where one test's sockets and files are."""
    with short_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def module_dir() -> Iterator[Path]:
    """Where the sockets and files of a module's common stack are."""
    with short_directory() as directory:
        yield directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    """A module's stack: two plain engines, unless the module has its own."""
    async with running_stack(Setup(tokenizer_dir, module_dir)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    """The module's stack, as good as new after each test."""
    yield common
    await common.assert_idle()
    common.restore()
