"""An engine on a store of three directories, two copies of each entry: any one directory may go."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from anbar.config.models import CacheConfig, CacheMode
from anbar.config.stores import StoreConfig, StoreKind
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import BLOCK, LIMIT_S, MIB, Answer, Engine, EngineConfig, story

pytestmark = pytest.mark.shared

PROMPT = story(1)
NAMES = ("a", "b", "c")
DECISIONS = "anbar_tier_decisions_total"
LOOKUPS = "anbar_tier_lookups_total"
PART_KEYS = "anbar_tier_part_keys_total"
PART_STATE = "anbar_tier_part_breaker_state"


@dataclass(frozen=True)
class Place:
    """An engine that has stored what it computed for PROMPT."""

    engine: Engine
    root: Path
    computed: Answer


@pytest.fixture(scope="module")
def place(launch: Launcher, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("replicated")
    members = tuple(StoreConfig(path=root / name, id=name) for name in NAMES)
    store = StoreConfig(kind=StoreKind.REPLICATED, members=members, id="test")
    cache = CacheConfig(mode=CacheMode.SHARED, host_bytes=768 * MIB, store=store)
    engine = launch(EngineConfig(unique("r"), smollm2, cache, num_blocks=96))
    engine.wait_ready()
    computed = engine.complete(PROMPT)
    engine.wait_metric(PART_KEYS, 2 * (computed.prompt_tokens // BLOCK), operation="store", result="hit")
    yield Place(engine, root, computed)
    engine.terminate()


def loaded(place: Place) -> Answer:
    """The prompt once more, when neither the device nor host RAM has it."""
    place.engine.forget(host=True)
    return place.engine.heard(lambda: place.engine.complete(PROMPT))


@pytest.mark.parametrize("name", NAMES)
def test_any_directory_may_go(place: Place, name: str) -> None:
    """One directory is renamed away: the same text, more than nine tenths of the prompt from the store, and
    the breaker of that member opens. The directory comes back: the breaker closes without a restart."""
    path, aside = place.root / name, place.root / "aside"
    path.rename(aside)
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while place.engine.metric(PART_STATE, part=name) == 0:
            assert time.monotonic() < deadline_s
            answer = loaded(place)
            assert answer.text == place.computed.text
            assert answer.cached > 0.9 * answer.prompt_tokens
    finally:
        aside.rename(path)
    deadline_s = time.monotonic() + LIMIT_S
    while place.engine.metric(PART_STATE, part=name) != 0:
        assert time.monotonic() < deadline_s
        assert loaded(place).text == place.computed.text
        time.sleep(0.2)


def test_what_does_not_pay_is_computed(place: Place) -> None:
    """The engine knows from the loads before what one takes. A request for which computing is said to be
    almost free is computed, one for which it is said to take long is loaded: the same text, and both are
    counted, with what each would have cost."""
    engine = place.engine
    for _ in range(3):
        loaded(place)

    def ask(s_per_token: float) -> Answer:
        engine.forget(host=True)
        fields = {"anbar": {"v": 1, "prefill_s_per_token": s_per_token}}
        return engine.complete(PROMPT, kv_transfer_params=fields)

    skipped, taken = (engine.metric(DECISIONS, decision=name) for name in ("skip", "load"))
    keys = engine.metric(LOOKUPS, result="skipped_by_break_even")
    for _ in range(5):  # one such run in fifty is loaded all the same
        computed = ask(1e-9)
        assert computed.text == place.computed.text
        if engine.metric(DECISIONS, decision="skip") > skipped:
            break
    assert computed.cached == 0
    num_blocks = computed.prompt_tokens // BLOCK
    engine.wait_metric(LOOKUPS, keys + num_blocks, result="skipped_by_break_even")
    assert engine.metric("anbar_tier_load_seconds_total", decision="skip") > 0
    fetched = engine.heard(lambda: ask(1.0))
    assert fetched.text == place.computed.text
    assert fetched.cached > 0.9 * fetched.prompt_tokens
    engine.wait_metric(DECISIONS, taken + 1, decision="load")
    engine.wait_metric("anbar_tier_seconds_saved_total", 1.0, decision="load")


def test_a_damaged_copy_is_repaired(place: Place) -> None:
    """A bit is flipped in every file of one directory. The same text, from the other copies; and what was
    read of the damaged files is there again, so that reading it once more finds no damage."""
    files = list((place.root / "a").rglob("*.kv"))
    assert len(files) > 10
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        answer = loaded(place)
        assert answer.text == place.computed.text
        assert answer.cached > 0.9 * answer.prompt_tokens
        # What was repaired after a call is told with the next one.
        num_damaged = place.engine.metric(PART_KEYS, part="a", operation="load", result="corrupt")
        num_repaired = place.engine.metric(PART_KEYS, part="a", operation="repair", result="hit")
        if 0 < num_damaged <= num_repaired:
            break
        assert time.monotonic() < deadline_s
    for _ in range(2):
        assert loaded(place).text == place.computed.text
    assert place.engine.metric(PART_KEYS, part="a", result="corrupt") == num_damaged
