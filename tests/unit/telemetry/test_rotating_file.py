"""The file of the block log: rotation, rights, torn lines, full disks, two writers."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anbar.adapters.telemetry.rotating_file import RotatingFile, rotated_files
from anbar.core.errors import StackError

BIG = 1 << 20


def opened(path: Path, file_bytes: int = BIG, num_files: int = 3) -> RotatingFile:
    file = RotatingFile(path, file_bytes, num_files)
    file.open()
    return file


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond this: a full disk, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_rotation_keeps_the_newest_lines_in_order(tmp_path: Path) -> None:
    """Each file holds what fits; of ten lines the last are in three files, read oldest first."""
    path = tmp_path / "deep" / "log"
    file = opened(path, file_bytes=20)
    for number in range(10):
        file.write(b"line %d..\n" % number)
    file.close()
    assert [p.name for p in rotated_files(path)] == ["log.2", "log.1", "log"]
    text = b"".join(p.read_bytes() for p in rotated_files(path))
    assert text == b"".join(b"line %d..\n" % number for number in range(4, 10))
    assert {p.stat().st_mode & 0o777 for p in rotated_files(path)} == {0o600}


def test_one_file_is_begun_anew(tmp_path: Path) -> None:
    """With a single file to keep, what it had goes."""
    file = opened(tmp_path / "log", file_bytes=12, num_files=1)
    file.write(b"old line\n")
    file.write(b"new line\n")
    file.close()
    assert [p.read_bytes() for p in rotated_files(tmp_path / "log")] == [b"new line\n"]


def test_a_run_that_keeps_fewer_files_removes_the_others(tmp_path: Path) -> None:
    """And nothing that only looks like one."""
    for name in ("log.1", "log.2", "log.7", "log.txt"):
        (tmp_path / name).write_bytes(b"x\n")
    file = opened(tmp_path / "log", file_bytes=5, num_files=3)
    file.write(b"line\n")
    file.write(b"line\n")
    file.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.lock", "log.txt"]


def test_it_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    """A process was killed in the middle of a line: the next one begins on its own."""
    path = tmp_path / "log"
    path.write_bytes(b"whole\nto")
    path.chmod(0o644)
    file = opened(path)
    file.write(b"next\n")
    file.close()
    assert path.read_bytes() == b"whole\nto\nnext\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_costs_lines_and_not_the_file(tmp_path: Path) -> None:
    """A line is cut by the disk; when there is room again, the next one is whole and on a line of its own."""
    path = tmp_path / "log"
    file = opened(path)
    with largest_file(8):
        with pytest.raises(OSError, match="8 of 10 bytes"):
            file.write(b"123456789\n")
        with pytest.raises(OSError, match="File too large") as refused:
            file.write(b"123456789\n")
    assert refused.value.errno == errno.EFBIG
    file.write(b"after\n")
    file.close()
    assert path.read_bytes() == b"12345678\nafter\n"


def test_a_file_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    """Somebody moved the log away and compressed it: lines do not go into the void."""
    path = tmp_path / "log"
    file = opened(path)
    file.write(b"one\n")
    path.unlink()
    file.write(b"two\n")
    file.close()
    assert path.read_bytes() == b"two\n"


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two would rotate each other's files away. The lock goes with its process, however that ends."""
    path = tmp_path / "log"
    code = (
        "import os, signal, sys, pathlib\n"
        "from anbar.adapters.telemetry.rotating_file import RotatingFile\n"
        "file = RotatingFile(pathlib.Path(sys.argv[1]), 1000, 2)\n"
        "file.open()\n"
        "file.write(b'line\\n')\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StackError, match="written by another process"):
            opened(path)
        other.kill()
    file = opened(path)
    file.write(b"mine\n")
    file.close()
    assert path.read_bytes() == b"line\nmine\n"


def test_what_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    """A directory in its place, a link to somewhere, a parent that is a file."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_bytes(b"")
    for name in ("dir", "link", "file/log"):
        with pytest.raises(StackError, match=f"{name} cannot be written"):
            opened(tmp_path / name)
    assert not os.path.exists(tmp_path / "elsewhere")
