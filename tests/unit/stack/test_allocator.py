"""What a process that has settled its allocator does with memory, as glibc itself tells of it."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc, or one that cannot be asked"
)

PROCESS = """
import ctypes, json, os, re, sys, tempfile, threading
from anbar.adapters.process.allocator import settle_allocator

libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [(str(place), ctypes.c_size_t) for place in range(10)]

libc.mallinfo2.restype = Info
libc.fopen.restype = ctypes.c_void_p

def num_regions():
    return getattr(libc.mallinfo2(), "3")  # hblks: regions from the kernel

def num_arenas():
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        return len(re.findall(rb"<heap nr=", file.read()))

if sys.argv[1] == "settle":
    settle_allocator(os.environ)
everybody = threading.Barrier(7)

def work():
    kept = bytearray(100_000)
    everybody.wait()

threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
everybody.wait()
for thread in threads:
    thread.join()
large = bytearray(16 * 2**20)
del large
before = num_regions()
tables = [bytearray(2**20) for _ in range(5)]
print(json.dumps([num_arenas(), num_regions() - before]))
"""


def of_process(settles: bool, **environ: str) -> tuple[int, int]:
    """Arenas after six threads have allocated at once; and how many of five tables of 1 MiB come from the
    kernel, after a buffer of 16 MiB was freed."""
    command = [sys.executable, "-c", PROCESS, "settle" if settles else "leave"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(command, env=clean | environ, capture_output=True, timeout=PATIENCE_S, check=True)
    num_arenas, num_tables = json.loads(done.stdout)
    return num_arenas, num_tables


def test_a_settled_process_has_two_arenas_and_gives_tables_back() -> None:
    """Beside a process that has left its allocator as it was, which shows what the settings are for."""
    num_arenas, num_tables = of_process(settles=False)
    assert num_arenas > 2
    assert num_tables < 5
    assert of_process(settles=True) == (2, 5)


def test_what_the_user_has_set_stays() -> None:
    """One of the settings by its variable: the others are ours. glibc's tunables: all are the user's."""
    assert of_process(settles=True, MALLOC_ARENA_MAX="1") == (1, 5)
    num_arenas, num_tables = of_process(settles=True, GLIBC_TUNABLES="glibc.malloc.arena_max=3")
    assert num_arenas == 3
    assert num_tables < 5
