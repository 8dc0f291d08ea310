"""Every fault of every kind of store under a real vLLM engine: the tokens stay, and no request fails.

By default a selection, in which each kind of store and each kind of fault is met; `ANBAR_FAULTS=all` runs
every pair (`make test-faults`). The model is a tiny one with random weights: it is quick, and what it says
depends on all of the prompt's KV.
"""

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from anbar.config.models import CacheConfig, CacheMode, Loading
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import LIMIT_S, MIB, Answer, Engine, EngineConfig, plain, story
from tests.engine.fake_clock import FakeClock
from tests.engine.faulty_stores import (
    CAPACITY_BYTES,
    ClusterUnderTest,
    FaultyStore,
    FilesUnderTest,
    S3UnderTest,
    ValkeyUnderTest,
    again_and_again,
)
from tests.waiting import wait_until

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
PERSIAN = "رودخانه در سال هزار و دویست سه وجب بالا آمد و مردم شهر به تپه‌ها رفتند. " * 2
HINDI = "नदी बारह सौ के वर्ष में तीन हाथ चढ़ी और नगर के लोग पहाड़ियों पर चले गए। " * 2
ADAPTERS = ("a", "b")
HOST_BYTES = 28 * MIB
"""A hundred blocks: not much more than the device has."""
DAMAGES = ("flipped bits", "truncated", "swapped", "deleted", "of another fingerprint")
CLOCKS = {"clock ahead": 2 * 86_400, "clock back": -2 * 86_400}
"""Beyond the time to live of what is stored."""
OWN_FILE_SYSTEM = ("full", "read-only")
SERVERS = ("killed", "frozen", "lost", "reset", "cut in a value", "slow")
ANYWHERE = (*DAMAGES, *CLOCKS, "two adapters", "evicted", "other engines")
FAULTS = {
    "files": (*ANYWHERE, "vanished", *OWN_FILE_SYSTEM),
    "valkey": (*ANYWHERE, *SERVERS, "full"),
    "s3": (*ANYWHERE, *SERVERS),
    "cluster": ("flipped bits", "swapped", "killed", "frozen", "evicted", "other engines"),
    "redis": ("truncated", "deleted", "killed", "frozen", "full", "evicted", "other engines"),
}
CHOSEN = {
    "files": ("swapped", "of another fingerprint", "full", "read-only", "clock ahead", "two adapters"),
    "valkey": ("flipped bits", "deleted", "killed", "lost", "cut in a value"),
    "s3": ("truncated", "frozen", "reset"),
}
AWAY = ("error", "timeout", "refused")
TOLD = {
    **dict.fromkeys(("flipped bits", "truncated", "swapped", "of another fingerprint"), ("corrupt",)),
    **dict.fromkeys(("vanished", "killed", "frozen", "lost", "reset", "cut in a value"), AWAY),
    "full": ("full", "evicted"),
    "read-only": ("full",),
}
"""By fault: what the engine's counters must say of keys, one of these. What was deleted is a miss like any
other; slowness need not be noticed, nor need clocks."""
SKEWED = tuple(("s3", fault) for fault in CLOCKS)
"""Signatures have a time, and the server refuses those of another day."""
EVICT_BY_THEMSELVES = ("files", "valkey", "redis")


def texts(engine: Engine) -> list[str]:
    """The answers to all prompts, in order: those of `plain_texts`, and one of their prompts with each
    adapter, if there are any."""
    answers = plain_texts(engine)
    if engine.config.adapters is not None:
        answers += [engine.complete(PERSIAN, model=name).text for name in ADAPTERS]
    return answers


def plain_texts(engine: Engine) -> list[str]:
    """Without an adapter: chats that share a system prompt, two other scripts, a salt, all at once. Nothing
    with an adapter may run beside them: on a cpu, vLLM 0.32 mixes both up when they share a batch."""
    asks: list[Callable[[], Answer]] = [partial(engine.chat, chat, 8, ignore_eos=True) for chat in CHATS]
    asks += [partial(engine.complete, text) for text in (PERSIAN, HINDI)]
    asks.append(partial(engine.complete, story(72, 8), cache_salt="tenant"))
    return [answer.text for answer in together(asks)]


def together(asks: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """All asked at the same time."""
    with ThreadPoolExecutor(len(asks)) as threads:
        return [future.result() for future in [threads.submit(ask) for ask in asks]]


@dataclass(frozen=True)
class Bench:
    """An engine on a store, and what an engine without a tier answers."""

    kind: str
    engine: Engine
    store: FaultyStore
    clock: FakeClock
    expected: list[str]


@pytest.fixture(scope="session")
def adapters(engine_python: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two LoRA adapters."""
    target = tmp_path_factory.mktemp("adapters")
    script = Path(__file__).with_name("lora_adapters.py")
    subprocess.run([engine_python, script, tiny, target], check=True, capture_output=True, timeout=300)
    return target


@pytest.fixture(scope="module")
def expected(launch: Launcher, tiny: Path, adapters: Path) -> list[str]:
    """The answers of an engine that keeps KV on its device only. The adapters matter."""
    engine = launch(EngineConfig(unique("plain"), tiny, plain(), num_blocks=96, adapters=adapters))
    engine.wait_ready()
    try:
        answers = texts(engine)
    finally:
        engine.kill()
    assert len({answers[len(CHATS)], *answers[-len(ADAPTERS) :]}) == 1 + len(ADAPTERS)
    return answers


@pytest.fixture(scope="module")
def benches(
    request: pytest.FixtureRequest,
    launch: Launcher,
    tiny: Path,
    adapters: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Bench]]:
    """The bench of a kind of store, the same one as long as no other kind is asked for: pytest would make a
    fixture with parameters anew for each test, however many have the same."""
    with ExitStack() as stack:
        made: list[Bench] = []

        def bench(kind: str) -> Bench:
            if not made or made[-1].kind != kind:
                stack.close()
                made.append(_bench(kind))
            return made[-1]

        def _bench(kind: str) -> Bench:
            clock = FakeClock(tmp_path_factory.mktemp("clock"))
            store = _store(kind, tmp_path_factory.mktemp(kind), stack)
            cache = CacheConfig(
                mode=CacheMode.SHARED, host_bytes=HOST_BYTES, store=store.config, load=Loading.ALWAYS
            )
            config = EngineConfig(unique(kind), tiny, cache, num_blocks=96, adapters=adapters)
            engine = launch(replace(config, env=clock.env))
            stack.callback(engine.kill)
            expected = request.getfixturevalue("expected")  # of another engine, which starts beside this one
            engine.wait_ready()
            assert texts(engine) == expected
            return Bench(kind, engine, store, clock, expected)

        yield bench


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Callable[[str], Bench]) -> Bench:
    """That of the test's kind of store, from which all prompts come."""
    made = benches(request.param)
    _until_loaded(made)
    return made


def _store(kind: str, directory: Path, stack: ExitStack) -> FaultyStore:
    if kind == "valkey":
        return ValkeyUnderTest(directory, stack)
    if kind == "redis":
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("needs redis-server")
        return ValkeyUnderTest(directory, stack, binary)
    if kind == "cluster":
        return ClusterUnderTest(directory, stack)
    if kind == "s3":
        return S3UnderTest(directory, stack)
    small = ["mount", "-t", "tmpfs", "-o", "size=384m", "anbar-test", str(directory)]
    is_mounted = os.geteuid() == 0 and subprocess.run(small, capture_output=True, check=False).returncode == 0
    if is_mounted:
        stack.callback(subprocess.run, ["umount", "-l", str(directory)], check=False)
    return FilesUnderTest(directory, is_mounted=is_mounted, capacity_bytes=CAPACITY_BYTES)


def _until_loaded(bench: Bench) -> None:
    """Until all prompts come from the store, with the right texts: what a fault took was stored again, and
    a breaker that had opened is closed. Nothing runs or waits then, and no slot of host RAM is held: an
    engine does not empty its caches before that."""
    deadline_s = (
        time.monotonic() + 2 * LIMIT_S
    )  # a breaker that opened again and again rests for half a minute
    while True:
        bench.engine.forget(host=True)
        before = bench.engine.metric("anbar_tier_bytes_total", direction="load")
        assert texts(bench.engine) == bench.expected
        if bench.engine.metric("anbar_tier_bytes_total", direction="load") > before:
            break
        assert time.monotonic() < deadline_s, bench.engine.log_tail()
        time.sleep(1.0)
    assert bench.engine.metric("anbar_tier_defects_total") == 0
    for state in ("running", "waiting"):
        wait_until(lambda state=state: bench.engine.metric(f"vllm:num_requests_{state}") == 0)


def _told(engine: Engine) -> Counter[str]:
    """Keys by what became of them, whatever was done with them."""
    told: Counter[str] = Counter()
    for result in ("corrupt", "miss", "full", *AWAY):
        for series in ("lookups", "loads", "stores"):
            told[result] += int(engine.metric(f"anbar_tier_{series}_total", result=result))
    told["evicted"] = int(engine.metric("anbar_tier_evicted_total"))
    return told


def _until_told(bench: Bench, before: Counter[str], wanted: Sequence[str]) -> None:
    """Until the counters say one of these; what came late is told with the engine's next step."""
    deadline_s = time.monotonic() + LIMIT_S
    while wanted and not any((_told(bench.engine) - before)[name] for name in wanted):
        assert time.monotonic() < deadline_s, f"{wanted}: {_told(bench.engine) - before}"
        bench.engine.complete("And", 1)
        time.sleep(0.1)


def _during(bench: Bench, fault: str) -> AbstractContextManager[None]:
    """While records are damaged, all the time, or the store is away."""
    if fault in CLOCKS:
        return bench.clock.jumped(CLOCKS[fault])
    damage = bench.store.damages.get(fault)
    return bench.store.outages[fault]() if damage is None else again_and_again(damage)


def _faulty(bench: Bench, launch: Launcher, fault: str) -> None:
    """The fault meets loads of known prompts, and stores and loads of a new one. What happened is counted,
    and what was damaged never an answer."""
    if fault in OWN_FILE_SYSTEM and fault not in bench.store.outages:
        pytest.skip("needs a file system of its own, which only root may mount")
    if fault in CLOCKS and not bench.clock.env:
        pytest.skip("needs a C compiler")
    engine = bench.engine
    new = story(1000 + PAIRS.index((bench.kind, fault)), 12)
    before = _told(engine)
    engine.forget(host=True)
    with _during(bench, fault):
        assert texts(engine) == bench.expected
        stored = engine.complete(new)
        engine.forget(host=True)
        loaded = engine.complete(new)
    _until_told(bench, before, AWAY if (bench.kind, fault) in SKEWED else TOLD.get(fault, ()))
    engine.forget(host=True)
    computed = engine.complete(new, kv_transfer_params={"kv_load_tiers": []})
    assert loaded.text == stored.text == computed.text


def _two_adapters(bench: Bench, launch: Launcher, fault: str) -> None:
    """One text without an adapter, with one and with another: each is computed, though the device, host RAM
    and the store have it of those before; and each comes back from the store as it was."""
    engine, text = bench.engine, story(73, 12)
    computed: dict[str, Answer] = {}
    for name, host in (("m", False), ("a", True), ("b", True)):
        computed[name] = engine.complete(text, model=name)
        assert computed[name].cached == 0
        engine.forget(host=host)
    assert len({answer.text for answer in computed.values()}) == len(computed)
    for name, answer in computed.items():
        engine.forget(host=True)
        again = engine.heard(partial(engine.complete, text, model=name))
        assert again.text == answer.text
        assert again.cached > 0.8 * again.prompt_tokens


def _evicted(bench: Bench, launch: Launcher, fault: str) -> None:
    """More prompts at once than the device, host RAM or the store can hold, while the known ones are asked
    for: the same tokens, and the same of the long ones when they come once more."""
    engine, before = bench.engine, _told(bench.engine)
    stories = [story(2000 + number, 60) for number in range(5)]
    with bench.store.evicting():
        with ThreadPoolExecutor(len(stories)) as threads:
            first = [threads.submit(engine.complete, text) for text in stories]
            assert plain_texts(engine) == bench.expected[: -len(ADAPTERS)]
        assert texts(engine) == bench.expected
        second = together([partial(engine.complete, text) for text in stories])
    assert [answer.text for answer in second] == [future.result().text for future in first]
    if bench.kind in EVICT_BY_THEMSELVES:
        _until_told(bench, before, ["evicted"])


def _other_engines(bench: Bench, launch: Launcher, fault: str) -> None:
    """A second engine on the store, beside the first one, and then the first after SIGKILL and a new start:
    the same tokens, from the store."""
    second = launch(replace(bench.engine.config, name=unique(f"{bench.kind}-second")))
    try:
        second.wait_ready()
        _until_loaded(replace(bench, engine=second))
    finally:
        second.kill()
    bench.engine.kill()
    bench.engine.start()
    bench.engine.wait_ready()


SCENES = {"two adapters": _two_adapters, "evicted": _evicted, "other engines": _other_engines}
PAIRS = [(kind, fault) for kind, faults in (FAULTS if ALL else CHOSEN).items() for fault in faults]


@pytest.mark.parametrize(("bench", "fault"), PAIRS, indirect=["bench"])
def test_tokens_stay(bench: Bench, launch: Launcher, fault: str) -> None:
    """Whatever happens to the store or its engines, the tokens are the same; afterwards the store is used
    again, without a restart on its account."""
    SCENES.get(fault, _faulty)(bench, launch, fault)
    _until_loaded(bench)
