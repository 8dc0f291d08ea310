"""Every fault of every kind of store under a real vLLM engine: the tokens stay, and no request fails.

By default a selection, in which each kind of store and each kind of fault is met; `ANBAR_FAULTS=all` runs
every pair (`make test-faults`).
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from anbar.config.models import CacheConfig, CacheMode
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import LIMIT_S, MIB, Engine, EngineConfig, plain, story
from tests.engine.faulty_stores import FaultyStore, FilesUnderTest, S3UnderTest, ValkeyUnderTest

pytestmark = pytest.mark.faults

ALL = os.environ.get("ANBAR_FAULTS") == "all"
SYSTEM = "You answer from the chronicle. " + story(71, 8)
CHATS = [
    [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What happened first?"}],
    [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "And what happened last?"}],
    [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What happened first?"},
        {"role": "assistant", "content": "The river rose."},
        {"role": "user", "content": "By how much?"},
    ],
]
PERSIAN = "رودخانه در سال هزار و دویست سه وجب بالا آمد و مردم شهر به تپه‌ها رفتند. " * 4
HINDI = "नदी बारह सौ के वर्ष में तीन हाथ चढ़ी और नगर के लोग पहाड़ियों पर चले गए। " * 4
DAMAGES = ("flipped bits", "truncated", "swapped", "deleted", "of another fingerprint")
OUTAGES = {
    "files": ("vanished", "full", "read-only"),
    "valkey": ("killed", "frozen", "lost", "reset", "cut in a value", "full"),
    "s3": ("killed", "frozen", "lost", "reset", "cut in a value"),
}
CHOSEN = {
    "files": ("swapped", "of another fingerprint", "full", "read-only"),
    "valkey": ("flipped bits", "deleted", "killed", "lost", "cut in a value"),
    "s3": ("truncated", "frozen", "reset"),
}


def texts(engine: Engine) -> list[str]:
    """The answers to all prompts, in order: chats that share a system prompt, two other scripts, a salt."""
    answers = [engine.chat(chat, 8, ignore_eos=True) for chat in CHATS]
    answers += [engine.complete(text) for text in (PERSIAN, HINDI)]
    answers.append(engine.complete(story(72, 12), cache_salt="tenant"))
    return [answer.text for answer in answers]


@dataclass(frozen=True)
class Bench:
    """An engine on a store, and what an engine without a tier answers."""

    engine: Engine
    store: FaultyStore
    expected: list[str]


@pytest.fixture(scope="module")
def expected(launch: Launcher, smollm2: Path) -> list[str]:
    """The answers of an engine that keeps KV on its device only."""
    engine = launch(EngineConfig(unique("plain"), smollm2, plain(), num_blocks=96))
    engine.wait_ready()
    try:
        return texts(engine)
    finally:
        engine.kill()


@pytest.fixture(scope="module")
def bench(
    request: pytest.FixtureRequest,
    launch: Launcher,
    smollm2: Path,
    expected: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        store = _store(request.param, directory, stack)
        cache = CacheConfig(mode=CacheMode.SHARED, host_bytes=256 * MIB, store=store.config)
        engine = launch(EngineConfig(unique(request.param), smollm2, cache, num_blocks=96))
        stack.callback(engine.kill)
        engine.wait_ready()
        made = Bench(engine, store, expected)
        assert texts(engine) == expected
        _until_loaded(made)
        yield made


def _store(kind: str, directory: Path, stack: ExitStack) -> FaultyStore:
    if kind == "valkey":
        return ValkeyUnderTest(directory, stack)
    if kind == "s3":
        return S3UnderTest(directory, stack)
    small = ["mount", "-t", "tmpfs", "-o", "size=384m", "anbar-test", str(directory)]
    is_mounted = os.geteuid() == 0 and subprocess.run(small, capture_output=True, check=False).returncode == 0
    if is_mounted:
        stack.callback(subprocess.run, ["umount", "-l", str(directory)], check=False)
    return FilesUnderTest(directory, is_mounted=is_mounted)


def _until_loaded(bench: Bench) -> None:
    """Until all prompts come from the store, with the right texts: what a fault took was stored again, and
    a breaker that had opened is closed."""
    deadline_s = (
        time.monotonic() + 2 * LIMIT_S
    )  # a breaker that opened again and again rests for half a minute
    while True:
        bench.engine.forget(host=True)
        before = bench.engine.metric("anbar_tier_bytes_total", direction="load")
        assert texts(bench.engine) == bench.expected
        if bench.engine.metric("anbar_tier_bytes_total", direction="load") > before:
            return
        assert time.monotonic() < deadline_s, bench.engine.log_tail()
        time.sleep(1.0)


PAIRS = [(kind, fault) for kind in OUTAGES for fault in ((*DAMAGES, *OUTAGES[kind]) if ALL else CHOSEN[kind])]


@pytest.mark.parametrize(("bench", "fault"), PAIRS, indirect=["bench"], scope="module")
def test_tokens_stay(bench: Bench, fault: str) -> None:
    """The fault meets loads of known prompts, then stores of a new one; afterwards the store is used again
    without a restart. What was damaged is counted and never an answer."""
    if fault in ("full", "read-only") and fault not in bench.store.outages:
        pytest.skip("needs a file system of its own, which only root may mount")
    engine = bench.engine
    new = story(1000 + PAIRS.index((str(bench.store.config.kind), fault)), 12)
    damage: Callable[[], None] | None = bench.store.damages.get(fault)
    outage = bench.store.outages.get(fault, nullcontext)
    wrong = engine.metric("anbar_tier_loads_total", result="corrupt")
    engine.forget(host=True)
    if damage is not None:
        damage()
    with outage():
        assert texts(engine) == bench.expected
        stored = engine.complete(new)
    if fault in DAMAGES and fault != "deleted":
        engine.wait_metric("anbar_tier_loads_total", wrong + 1, result="corrupt")
    engine.forget(host=True)
    computed = engine.complete(new, kv_transfer_params={"kv_load_tiers": []})
    assert computed.text == stored.text
    _until_loaded(bench)
