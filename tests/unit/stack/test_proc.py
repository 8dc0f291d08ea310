"""Reading the process table."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import shared_memory

import pytest

from anbar.adapters.process.proc import all_entries, entry_of, shm_of


@pytest.mark.parametrize("name", [b"odd ) (name", "انبار-انبار".encode()[:15], b"\xff\xfe"], ids=repr)
def test_any_name_of_a_process_is_borne(name: bytes) -> None:
    """A process may call itself anything, and the kernel cuts its name at 15 bytes, in the middle of a letter
    too: its entry is read all the same, and so are all others."""
    code = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1])); "
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, name.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        entry = entry_of(child.pid)
        assert entry is not None
        assert (entry.id.pid, entry.parent) == (child.pid, os.getpid())
        assert child.pid in {other.id.pid for other in all_entries()}


def test_shared_memory_is_found_by_whoever_holds_it() -> None:
    """Semaphores and segments of Python's multiprocessing are found in the process that made them, under the
    name that has to be removed; so is nothing of another process."""
    context = multiprocessing.get_context("spawn")
    before = shm_of(os.getpid())
    semaphore = context.Semaphore(1)
    segment = shared_memory.SharedMemory(create=True, size=100)
    try:
        found = shm_of(os.getpid()) - before
        assert segment.name in found
        assert any(name.startswith("sem.mp-") for name in found), found
        assert not found & shm_of(1)
    finally:
        segment.close()
        segment.unlink()
        del semaphore
