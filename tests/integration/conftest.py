"""Fixtures shared by the integration tests."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anbar.testing.fake_engine import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the tiny tokenizer: the model's root, for engines and router alike."""
    return write_tokenizer(tmp_path_factory.mktemp("model") / "fake-model")


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory with a short name: the path of a Unix socket has at most 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="anbar-"))
    yield directory
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
