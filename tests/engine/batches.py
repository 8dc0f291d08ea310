"""Seeded batches of requests that real vLLM and the engine model both serve.

Plain data: importable in the engine's interpreter and in the tests'. Each scenario is one engine, so small
that its batches preempt and evict all the time. They are served one after the other, so that later ones meet
what earlier ones left.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anbar.sim.engine.shape import EngineShape, HostShape, Offload

BLOCK_SIZE = 32
"""The smallest that vLLM's CPU backend takes."""
VOCABULARY = 1024


@dataclass(frozen=True)
class Ask:
    """A request: exactly `max_tokens` tokens are generated."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    after: str | None = None
    """A request of an earlier batch: its prompt and answer come before `prompt`, as in a chat's next turn."""
    salt: str | None = None
    sampled: bool = False
    """Whether the answer is drawn, not greedy and so equal for equal prompts. (Not drawn from a seed: with
    chunked prefill, vLLM's CPU backend fails at that.)"""
    reads_cache: bool = True
    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    arrives: int = 0
    """Added before this step of its batch, or as soon as the engine has nothing left to do."""
    aborts: int | None = None
    """Aborted before this step, if it has not finished."""


@dataclass(frozen=True)
class Batch:
    """Requests queued in this order; with `clears` the prefix cache is dropped before."""

    name: str
    asks: tuple[Ask, ...]
    clears: bool = False


@dataclass(frozen=True)
class Scenario:
    """One engine and what it is asked."""

    name: str
    shape: EngineShape
    batches: tuple[Batch, ...]
    host: HostShape | None = None


@dataclass
class _Writer:
    """Writes the batches of a scenario from one seed."""

    seed: int
    max_tokens: int
    """Longest prompt plus answer."""
    rng: random.Random = field(init=False)
    systems: list[tuple[int, ...]] = field(init=False)
    """Beginnings that many prompts share: some end at a block's end, some amid one."""
    length_of: dict[str, int] = field(default_factory=dict)
    """Prompt and answer of each request of the batches so far."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.systems = [self.tokens(n) for n in (64, 96, 75, 130)]

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(10, VOCABULARY) for _ in range(count))

    def batch(self, name: str, count: int, *, clears: bool = False) -> Batch:
        """`count` requests. With a third of them going on from requests of earlier batches."""
        asks: list[Ask] = []
        for index in range(count):
            asks.append(self.ask(f"{name}-{index}", asks))
        for ask in asks:  # later batches may go on from these
            before = self.length_of[ask.after] if ask.after else 0
            self.length_of[ask.id] = before + len(ask.prompt) + ask.max_tokens
        return Batch(name, tuple(asks), clears)

    def ask(self, name: str, earlier: Sequence[Ask]) -> Ask:
        rng = self.rng
        answer = rng.choice((1, 2, 8, 31, 32, 33, 40, 64, 70, 96, 100))
        kind = rng.random()
        open_ends = [key for key, length in self.length_of.items() if length + answer + 60 <= self.max_tokens]
        if open_ends and kind < 0.34:
            return Ask(name, self.tokens(rng.randint(1, 60)), answer, after=rng.choice(open_ends))
        if earlier and kind < 0.46:  # the same prompt again: with the same answer, or with another one
            twin = rng.choice(earlier)
            return replace(twin, id=name, sampled=rng.random() < 0.5)
        if kind < 0.56:  # exactly n blocks
            system = rng.choice(self.systems)[: 2 * BLOCK_SIZE]
            prompt = system + self.tokens(BLOCK_SIZE * rng.randint(0, 4))
        elif kind < 0.8:
            prompt = rng.choice(self.systems) + self.tokens(rng.randint(1, 140))
        else:
            prompt = self.tokens(rng.randint(3, 240))
        salt = rng.choice(("red", "blue")) if rng.random() < 0.2 else None
        return Ask(name, prompt, answer, salt=salt, sampled=rng.random() < 0.5)


def _scenario(
    name: str, seed: int, shape: EngineShape, host: HostShape | None = None, *, count: int = 24
) -> Scenario:
    """Three batches: on empty caches, on warm ones, and after the device's cache was dropped."""
    writer = _Writer(seed, shape.max_model_len)
    first, second = writer.batch("a", count), writer.batch("b", count)
    return Scenario(name, shape, (first, second, writer.batch("c", count // 2, clears=True)), host)


def _open_scenario(name: str, seed: int, shape: EngineShape, host: HostShape | None = None) -> Scenario:
    """Requests that arrive while others run, some of which are aborted: waiting, prefilling or decoding.
    A few do not read the cache, and a few may not load or offload all of their prompt."""
    writer = _Writer(seed, shape.max_model_len)
    rng = writer.rng
    batches = []
    for label in ("a", "b"):
        asks = []
        for index, ask in enumerate(writer.batch(label, 28).asks):
            arrives = 0 if index < 6 else rng.randrange(120)
            aborts = arrives + rng.randrange(40) if rng.random() < 0.2 else None
            limits = rng.random()
            asks.append(
                replace(
                    ask,
                    arrives=arrives,
                    aborts=aborts,
                    reads_cache=limits > 0.1,
                    max_load_tokens=rng.choice((0, 40, 96)) if 0.1 < limits < 0.25 else None,
                    max_offload_tokens=rng.choice((0, 33, 64)) if 0.2 < limits < 0.35 else None,
                )
            )
            if aborts is not None:
                writer.length_of.pop(ask.id, None)
        batches.append(Batch(label, tuple(asks)))
    return Scenario(name, shape, tuple(batches), host)


_BASE = EngineShape(
    block_size=BLOCK_SIZE, num_blocks=41, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=512
)
"""40 blocks can be used: eight requests of the batches together want some 60."""
_SMALL = replace(_BASE, num_blocks=31)
"""With a host tier below: prompts must often come back from there."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("plain", 1, _BASE),
        _scenario("chunked", 2, replace(_BASE, num_blocks=33, max_num_seqs=5, max_num_batched_tokens=50)),
        _scenario("watermark", 3, replace(_BASE, num_blocks=49, watermark=0.1, max_num_seqs=12)),
        _scenario(
            "unreserved",
            4,
            replace(_BASE, num_blocks=36, reserve_full_prompt=False, max_num_batched_tokens=64),
        ),
        _open_scenario("arrivals", 5, _BASE),
        _scenario("host", 6, _SMALL, HostShape(60)),
        _scenario("host-pairs", 7, _SMALL, HostShape(30, chunk_blocks=2)),
        _scenario("host-prompt", 8, _SMALL, HostShape(70, offload=Offload.PROMPT)),
        _scenario(
            "host-pairs-prompt",
            9,
            replace(_SMALL, max_num_seqs=5, max_num_batched_tokens=100),
            HostShape(26, chunk_blocks=2, offload=Offload.PROMPT),
        ),
        _open_scenario("host-arrivals", 57, _SMALL, HostShape(60)),
        _scenario("host-tiny", 12, _SMALL, HostShape(9)),
    )
}
