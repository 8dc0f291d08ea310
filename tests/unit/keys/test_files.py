"""The files with tenants' secrets, used by several processes at once."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from anbar.adapters.keys.files import KeyFiles
from anbar.core.errors import KeyFileError

SCOPES = ["", "bank", "../../etc", "مستأجر", "x" * 128]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys"


def test_nothing_is_made_by_looking(directory: Path) -> None:
    """A scope without a key has none however often it is asked for, and an epoch that is empty."""
    files = KeyFiles(directory)
    assert [files.data_key(scope) for scope in SCOPES] == [None] * len(SCOPES)
    assert [files.epoch(scope) for scope in SCOPES] == [b""] * len(SCOPES)
    assert files.changed() == 0
    assert not directory.exists()


def test_every_scope_has_its_own_key(directory: Path) -> None:
    """Made once, then the same for whoever shares the directory; any text is a scope."""
    keys = [KeyFiles(directory).make_data_key(scope) for scope in SCOPES]
    assert len(set(keys)) == len(SCOPES)
    assert {len(key) for key in keys} == {32}
    assert [KeyFiles(directory).data_key(scope) for scope in SCOPES] == keys
    assert KeyFiles(directory).secret() == KeyFiles(directory).secret()


def test_only_the_owner_can_read(directory: Path) -> None:
    """0700 and 0600, whatever the umask; a file that others can read is not used."""
    files = KeyFiles(directory)
    before = os.umask(0)
    try:
        for call in (files.make_data_key, files.purge, files.make_data_key):
            call("bank")
        files.secret()
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    found = list(directory.iterdir())
    assert len(found) == 3
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    (directory / "salt.secret").chmod(0o640)
    with pytest.raises(KeyFileError, match=r"can be read by others: chmod 600"):
        files.secret()


def test_a_purge_is_seen_at_once_everywhere(directory: Path) -> None:
    """Others that have used the key have none after it, and the one that is made next is another; a reader
    that has not looked in between takes the new one too. Other scopes keep what they have."""
    one, other = KeyFiles(directory), KeyFiles(directory)
    kept = one.make_data_key("kept")
    seen = {one.make_data_key("bank")}
    epochs = {one.epoch("bank")}
    for _ in range(10):
        assert other.data_key("bank") in seen
        assert one.purge("bank").had_key
        assert other.data_key("bank") is None
        made = one.make_data_key("bank")
        assert other.data_key("bank") == made
        assert one.purge("bank").had_key
        made = one.make_data_key("bank")
        assert other.data_key("bank") == made
        assert made not in seen
        seen.add(made)
        epochs.add(other.epoch("bank"))
    assert len(epochs) == 11
    assert other.data_key("kept") == kept
    assert other.epoch("kept") == b""


def test_a_purge_can_be_repeated(directory: Path) -> None:
    """Without a key, and without a directory, there is a new epoch each time."""
    files = KeyFiles(directory)
    assert not files.purge("bank").had_key
    first = files.epoch("bank")
    assert not files.purge("bank").had_key
    assert len({b"", first, files.epoch("bank")}) == 3


def test_a_purge_changes_the_directory(directory: Path) -> None:
    """So one look at it tells whether any of the epochs may be another."""
    files = KeyFiles(directory)
    files.secret()
    os.utime(directory, ns=(1, 1))  # long ago
    before = files.changed()
    files.purge("bank")
    assert files.changed() != before


def test_many_make_one_key(directory: Path) -> None:
    """Threads that all want a key that is not there get one and the same, and nothing else is left there."""
    found: list[bytes] = []
    threads = [
        Thread(target=lambda: found.append(KeyFiles(directory).make_data_key("bank"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(list(directory.iterdir())) == 1


def test_processes_agree(directory: Path) -> None:
    """Routers and engines that start together have one secret."""
    code = (
        "import sys; from pathlib import Path; from anbar.adapters.keys.files import KeyFiles; "
        "print(KeyFiles(Path(sys.argv[1])).secret().hex())"
    )
    command = [sys.executable, "-c", code, str(directory)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    said = {process.communicate()[0] for process in started}
    assert said == {KeyFiles(directory).secret().hex().encode() + b"\n"}


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_file_is_no_key(directory: Path, content: bytes) -> None:
    """Too short or too long: refused by name, and what is in it is not shown."""
    files = KeyFiles(directory)
    key = files.make_data_key("bank")
    (path,) = directory.iterdir()
    path.write_bytes(content)
    with pytest.raises(KeyFileError) as caught:
        files.data_key("bank")
    assert str(path) in str(caught.value)
    assert key.hex() not in str(caught.value)
    with pytest.raises(KeyFileError):
        files.make_data_key("bank")
    assert files.purge("bank").had_key
    assert files.make_data_key("bank") != key


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    """A file in the place of the directory: an error that names it."""
    (tmp_path / "keys").write_text("in the way")
    files = KeyFiles(tmp_path / "keys")
    for call in (files.secret, lambda: files.data_key("a"), lambda: files.purge("a")):
        with pytest.raises(KeyFileError, match="cannot be used"):
            call()
