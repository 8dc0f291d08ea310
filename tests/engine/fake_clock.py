"""The system's clock of one process and its children, which a test may set while they run."""

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class FakeClock:
    """Give `env` to the process. Without a C compiler there is no such clock: `env` is empty."""

    def __init__(self, directory: Path) -> None:
        file = directory / "clock"
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as opened:
            self._moved = mmap.mmap(opened.fileno(), mmap.PAGESIZE)
        self.env: Mapping[str, str] = {}
        compiler = shutil.which("cc")
        if compiler is not None:
            library = directory / "fake_clock.so"
            source = Path(__file__).with_suffix(".c")
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
            self.env = {"LD_PRELOAD": str(library), "ANBAR_TEST_CLOCK": str(file)}

    @contextmanager
    def jumped(self, seconds: int) -> Iterator[None]:
        """The clock goes that much ahead, or back, and at the end to where it would be."""
        self._set(seconds)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, seconds: int) -> None:
        self._moved[:8] = struct.pack("=q", seconds)
