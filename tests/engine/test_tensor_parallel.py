"""One engine of two worker processes: each offloads its half of a block into one row, which travels as a
whole.

On the CPU platform each worker must be told its cores. The workers talk over shared memory and gloo,
both of which vLLM sets up by itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.apps.stack.placement import split_cores
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import BLOCK, MIB, Answer, Engine, EngineConfig, shared, story

pytestmark = pytest.mark.tensor_parallel

Cores = tuple[tuple[int, ...], ...]
PROMPTS = [story(seed, 40) for seed in range(3)]
CHUNK = 2
"""Blocks per offloaded chunk: halves of two workers and several blocks in one row."""


@pytest.fixture(scope="module")
def cores() -> Cores:
    """Half of the cores for each worker; the same one when there is only one."""
    return tuple(split_cores(sorted(os.sched_getaffinity(0)), 2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel") / "store"


def config(name: str, model: Path, store: Path, cores: Cores) -> EngineConfig:
    return EngineConfig(
        unique(name),
        model,
        shared(store, host_bytes=256 * MIB, chunk_blocks=CHUNK),
        cores=cores,
    )


@pytest.fixture(scope="module")
def engines(launch: Launcher, tiny: Path, store: Path, cores: Cores) -> Iterator[tuple[Engine, Engine]]:
    """The one that computes and the one that comes after it, started together."""
    started = launch(config("tp-a", tiny, store, cores)), launch(config("tp-b", tiny, store, cores))
    yield started
    for engine in started:
        engine.terminate()


@pytest.fixture(scope="module")
def first(engines: tuple[Engine, Engine]) -> Engine:
    engines[0].wait_ready()
    return engines[0]


@pytest.fixture(scope="module")
def computed(first: Engine) -> list[Answer]:
    """The prompts' answers, computed; the store has their blocks."""
    answers = [first.complete(prompt, 12) for prompt in PROMPTS]
    chunks = sum(answer.prompt_tokens // (BLOCK * CHUNK) for answer in answers)
    first.wait_metric("anbar_tier_stores_total", chunks, result="hit")
    return answers


def test_the_answers_depend_on_the_whole_prompt(first: Engine, computed: list[Answer]) -> None:
    """The model is random: make sure that wrong KV would show. Prompts that differ only in their first words,
    all blocks away from the end, are answered differently."""
    ids = first.tokenize(prompt=PROMPTS[0])
    changed = first.complete([*ids[:8], 100, *ids[9:]], 12)
    assert changed.text != computed[0].text
    assert len({answer.text for answer in computed}) == len(PROMPTS)
    assert all(answer.cached == 0 for answer in computed)


def test_both_halves_come_back_from_host_ram(first: Engine, computed: list[Answer]) -> None:
    """Evicted from the device and loaded from host RAM: the same tokens."""
    for prompt, answer in zip(PROMPTS, computed, strict=True):
        first.forget()
        again = first.complete(prompt, 12)
        assert again.text == answer.text
        assert again.cached >= answer.prompt_tokens - BLOCK * CHUNK


def test_a_prefix_that_ends_inside_a_chunk(first: Engine, computed: list[Answer]) -> None:
    """Three blocks are on the device, that is one chunk and a half; the rest comes from host RAM, beginning
    with the second half of a chunk: the same tokens."""
    first.forget()
    ids = first.tokenize(prompt=PROMPTS[0])
    first.complete(ids[: 3 * BLOCK + 1], 1)
    again = first.complete(PROMPTS[0], 12)
    assert again.text == computed[0].text
    assert again.cached >= computed[0].prompt_tokens - BLOCK * CHUNK


def test_another_engine_loads_both_halves(engines: tuple[Engine, Engine], computed: list[Answer]) -> None:
    """The engine is killed; another one of two workers on the same store gives the same tokens without
    computing the prompts. An engine of one worker, whose rows mean something else, would not find them
    (fingerprint)."""
    first, second = engines
    first.kill()
    second.wait_ready()
    for prompt, answer in zip(PROMPTS, computed, strict=True):
        again = second.heard(lambda prompt=prompt: second.complete(prompt, 12))
        assert again.text == answer.text
        assert again.cached >= answer.prompt_tokens - BLOCK * CHUNK
    assert not second.region.exists()
