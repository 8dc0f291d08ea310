"""Eviction and preemption on one engine with few device blocks: host RAM brings the prefixes back."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anbar.apps.stack.placement import split_cores
from anbar.testing.engine_contract import Target
from anbar.testing.engine_contract.tier_families import check_counters_of_tiers, check_tier_families
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import BLOCK, SERVED_NAME, Answer, Engine, EngineConfig, native, plain, story

pytestmark = pytest.mark.native

NUM_BLOCKS = 48
PROMPTS = [story(seed, 27) for seed in range(4)]
"""About 430 tokens, 14 blocks, each: three fit with room to grow, the growth of all does not."""
OUTPUT = 96
COMPUTED = "vllm:prompt_tokens_by_source_total"


@pytest.fixture(scope="module")
def engines(launch: Launcher, smollm2: Path) -> Iterator[tuple[Engine, Engine]]:
    """The same engine without and with a host tier, each on its share of the cores."""
    shares = split_cores(sorted(os.sched_getaffinity(0)), 2)
    started = [
        launch(EngineConfig(unique(name), smollm2, cache, NUM_BLOCKS, 1024, (share,)))
        for name, cache, share in zip(("plain", "native"), (plain(), native()), shares, strict=True)
    ]
    for engine in started:
        engine.wait_ready()
    yield started[0], started[1]
    for engine in started:
        engine.terminate()


def run(engine: Engine) -> list[Answer]:
    """All prompts at once, then each again by itself, when most of its blocks have been evicted."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        first = list(pool.map(lambda prompt: engine.complete(prompt, OUTPUT), PROMPTS))
    return first + [engine.complete(prompt, 8) for prompt in PROMPTS]


def test_preempted_and_evicted_prefixes_come_back(engines: tuple[Engine, Engine]) -> None:
    """The load preempts on both engines. The answers are the same, the engine with a host tier copied
    prefixes back during the first round (only preempted requests can ask for blocks there) and computed
    far less in the second."""
    plain, host = engines
    with ThreadPoolExecutor(2) as pool:
        without, with_host = pool.map(run, engines)
    assert [answer.text for answer in with_host] == [answer.text for answer in without]
    for engine in engines:
        assert engine.metric("vllm:num_preemptions_total") > 0
    assert host.wait_metric("vllm:kv_offload_load_bytes_total", 1) > 0
    computed = {e: e.metric(COMPUTED, source="local_compute") for e in engines}
    loaded = host.metric(COMPUTED, source="external_kv_transfer")
    print(f"computed {computed[plain]:.0f} tokens without, {computed[host]:.0f} with; loaded {loaded:.0f}")
    assert loaded > 0
    assert computed[host] < 0.75 * computed[plain]
    again = with_host[len(PROMPTS) :]
    assert all(answer.cached > 0.9 * answer.prompt_tokens for answer in again)


def test_the_next_turn_finds_the_answer(engines: tuple[Engine, Engine]) -> None:
    """A chat's first turn is evicted from the device. Its second turn, whose prompt repeats the answer, loads
    the answer's blocks too, which were generated and never were part of a prompt."""
    _, host = engines
    question = {"role": "user", "content": "Tell me a long story about a storehouse and its keeper."}
    first = host.chat([question], max_tokens=160, ignore_eos=True)
    for seed in range(20, 24):
        host.complete(story(seed, 27), 1)
    turn = [question, {"role": "assistant", "content": first.text}]
    second = host.chat([*turn, {"role": "user", "content": "And then?"}], max_tokens=8)
    shared_tokens = _common_prefix(host, question, turn, first)
    print(f"first prompt {first.prompt_tokens}, second {second.prompt_tokens}, cached {second.cached}")
    assert second.cached > first.prompt_tokens + 2 * BLOCK
    assert second.cached >= shared_tokens // BLOCK * BLOCK - BLOCK


def test_a_prompt_that_is_cached_to_its_end(engines: tuple[Engine, Engine]) -> None:
    """A prompt of exactly ten blocks, twice. The device alone gives nine, since a token must be computed;
    with a host tier all ten count as cached."""
    for engine, missing in zip(engines, (BLOCK, 0), strict=True):
        ids = engine.tokenize(prompt=story(30))[: 10 * BLOCK]
        engine.complete(ids, 2)
        assert engine.complete(ids, 1).cached == len(ids) - missing


def test_metrics_of_tiers(engines: tuple[Engine, Engine]) -> None:
    """The engine with a host tier has all metric families of one, as emulated ones have; the other none."""
    plain, host = engines
    check_tier_families(Target(plain.url, SERVED_NAME))
    target = Target(host.url, SERVED_NAME, offloads=True, alone=True)
    check_tier_families(target)
    check_counters_of_tiers(target)


def _common_prefix(
    engine: Engine, question: dict[str, str], turn: list[dict[str, str]], answer: Answer
) -> int:
    """Tokens that the second turn's prompt has in common with what the first turn processed."""
    prompt = engine.tokenize(messages=[question])
    spoken = engine.tokenize(prompt=answer.text, add_special_tokens=False)
    first = prompt + spoken[:-1]
    second = engine.tokenize(messages=turn, add_generation_prompt=False)
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
