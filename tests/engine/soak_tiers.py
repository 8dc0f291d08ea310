"""A long run of the tiers, without a model, over stores that are damaged and taken away at random.

    python -m tests.engine.soak_tiers [minutes] [store ...]

The stores are files, valkey, and layered (Valkey before files), each under a process of its own. Fails when a
request was stuck, a chunk had other bytes than were stored, a slot of host RAM was not returned, memory has
grown by more than 5 % after the first third, or threads or file descriptors have become more.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anbar.apps import interpreter
from anbar.config.stores import StoreConfig, StoreKind, store_settings
from tests.engine.faulty_stores import CAPACITY_BYTES, FaultyStore, FilesUnderTest, ValkeyUnderTest

WORKER = Path(__file__).with_name("soak_worker.py")
STORES = ("files", "valkey", "layered")
ON_S, OFF_S = (0.5, 8.0), (0.5, 6.0)
"""How long a fault lasts, and the time to the next."""
GROWTH = 1.05
PATIENCE_S = 300.0


@dataclass
class Run:
    """A worker, the stores behind its tier, and what it has said."""

    name: str
    process: subprocess.Popen[str]
    stores: list[FaultyStore]
    rests: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.rests.append(json.loads(line))
            print(f"{self.name}: {line.strip()}", flush=True)

    def harm(self, is_over: threading.Event, chance: random.Random) -> None:
        """One fault after the other, of any of its stores, once the worker has begun."""
        while not self.rests and not is_over.wait(1.0):
            pass
        try:
            while not is_over.wait(chance.uniform(*OFF_S)) and self.process.poll() is None:
                self._harm_once(is_over, chance)
        finally:
            self.process.kill()  # no harm when it has ended; and what could not be harmed was not tried

    def _harm_once(self, is_over: threading.Event, chance: random.Random) -> None:
        store = chance.choice(self.stores)
        name = chance.choice(sorted([*store.damages, *store.outages]))
        self.faults[name] = self.faults.get(name, 0) + 1
        damage = store.damages.get(name)
        if damage is not None:
            damage()
        else:
            with store.outages[name]():
                is_over.wait(chance.uniform(*ON_S))

    def problems(self) -> Iterator[str]:
        """What is wrong with how it went."""
        if self.process.returncode != 0:
            yield f"ended with {self.process.returncode}"
        later = self.rests[len(self.rests) // 3 :]
        if len(later) < 3:
            yield f"too short: {len(self.rests)} moments of rest"
            return
        warm, last = later[: len(later) // 3], later[-(len(later) // 3) :]
        before, after = (statistics.median(rest["memory_mib"] for rest in part) for part in (warm, last))
        if after > GROWTH * before:
            yield f"memory grew from {before} to {after} MiB"
        for what in ("threads", "files"):
            most = max(rest[what] for rest in self.rests[: -len(last)])
            if last[-1][what] > most:
                yield f"{what}: {last[-1][what]}, and {most} before"
        for what in ("loads hit", "loads corrupt", "read", "written"):
            if not last[-1].get(what):
                yield f"nothing was {what}"


@contextmanager
def under_test(name: str, directory: Path) -> Iterator[tuple[StoreConfig, list[FaultyStore]]]:
    """The store, and what can be harmed of it."""
    directory.mkdir()
    with ExitStack() as stack:
        stores: list[FaultyStore] = []
        if name != "files":
            stores.append(ValkeyUnderTest(directory, stack))
        if name != "valkey":
            mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "anbar-test", str(directory)]
            if name == "files" and os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0:
                stack.callback(subprocess.run, ["umount", "-l", str(directory)], check=False)
                stores.append(FilesUnderTest(directory, is_mounted=True, capacity_bytes=CAPACITY_BYTES))
            else:
                stores.append(FilesUnderTest(directory, is_mounted=False, capacity_bytes=CAPACITY_BYTES))
        members = tuple(store.config for store in stores)
        config = members[0] if len(members) == 1 else StoreConfig(kind=StoreKind.LAYERED, members=members)
        yield config, stores


def start(name: str, settings: Mapping[str, Any], seconds: float, seed: int) -> subprocess.Popen[str]:
    python, _ = interpreter.choose(os.environ)
    command = [str(python), str(WORKER), json.dumps(settings), str(seconds), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main(minutes: float, names: list[str]) -> int:
    seed = int(time.time())
    print(f"seed {seed}")
    is_over = threading.Event()
    runs: list[Run] = []
    with TemporaryDirectory() as root, ExitStack() as stack:
        stack.callback(is_over.set)
        for number, name in enumerate(names):
            config, stores = stack.enter_context(under_test(name, Path(root) / name))
            process = start(name, store_settings(config, Path(root)), 60 * minutes, seed + number)
            stack.callback(process.kill)
            runs.append(Run(name, process, stores))
        threads = stack.enter_context(ThreadPoolExecutor(2 * len(runs)))
        works = [threads.submit(run.listen) for run in runs]
        for number, run in enumerate(runs):
            works.append(threads.submit(run.harm, is_over, random.Random(seed - number)))
        try:
            for run in runs:
                run.process.wait(60 * minutes + PATIENCE_S)
        finally:
            is_over.set()
            for run in runs:
                run.process.kill()
        for work in works:
            work.result()
    problems = [f"{run.name}: {problem}" for run in runs for problem in run.problems()]
    for run in runs:
        print(f"{run.name}: faults {run.faults}")
    print("\n".join(problems) or "no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers and mounts go too
    sys.exit(main(float((sys.argv[1:2] or ["30"])[0]), sys.argv[2:] or list(STORES)))
