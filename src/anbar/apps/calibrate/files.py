"""Cost files on disk. What is in them: `anbar.core.cost_file`."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anbar.core.cost_file import CostFile, parse, render
from anbar.core.errors import ConfigError

MAX_BYTES = 1024**2
"""A cost file has some 3 KiB."""


def read_cost_file(path: Path) -> CostFile:
    """The content of `path`. Raises ConfigError, which names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes; allowed: a file by `anbar calibrate`")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8; allowed: a file by `anbar calibrate`") from error
    return parse(text, str(path))


def write_cost_file(path: Path, content: CostFile) -> None:
    """Write `path` at once or not at all: whoever reads it sees the old content or the new. Directories that
    it needs are made.

    Raises ConfigError when it cannot be written.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        draft = Path(name)
        try:
            draft.write_text(render(content), "utf-8")
            draft.chmod(0o644)  # figures, no secrets; a temporary file is private
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raises ConfigError when `path` could not be written: better said before minutes of measuring. Makes
    nothing, no directories either."""
    with _writing(path):
        if path.is_dir():
            raise ConfigError(f"{path}: cannot be written: it is a directory")
        directory = path.parent
        while not directory.exists():
            directory = directory.parent
        with tempfile.TemporaryFile(dir=directory):
            pass


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
