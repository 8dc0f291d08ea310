"""The published table of 16 H100s: eight engines of Qwen3-32B behind a router, without offload, with vLLM's
own and with LMCache, prompts of 30,000 and 8,000 shared tokens. Predicted from `fitting`, which has
not seen it.

Source: llm-d's guide to tiered prefix caches (github.com/llm-d/llm-d, file
guides/tiered-prefix-cache/cpu/README.md of November 2025) and pull request 457. What it does not say is
assumed here, and listed in `ASSUMED`.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from anbar.core.cost import FREE_COPY, CopyCost, EngineCost
from anbar.sim.engine.engine import NO_TIERS, Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.shape import EngineShape, HostShape
from benchmarks.validation import fitting, published
from benchmarks.validation.drive import Clients, Prompt, Served

NUM_ENGINES, CONCURRENCY = 8, 45
NUM_GROUPS, PER_GROUP, QUESTION, ANSWER = 45, 10, 256, 1024
SYSTEM = {"high_30k": 30_000, "low_8k": 8_000}
REAL_BLOCK, BLOCK = 16, 128
"""Tokens. Simulated in larger blocks than they had: many times as fast, and hardly different."""
POOL_TOKENS = 9271 * REAL_BLOCK
KV_BYTES = 262_144
PIECES_0_11 = 128 * BLOCK // REAL_BLOCK
"""Contiguous pieces of a block on each GPU: keys and values of 64 layers, 16 KB each (vLLM 0.11)."""
PIECE_BYTES = 16_384
"""As `published/vllm_blog_2026-01-08_block_sizes.csv` has it of this model on two GPUs."""
NATIVE_TOKENS = 41_000 * REAL_BLOCK
LMCACHE_TOKENS, LMCACHE_CHUNK = 2 * 100 * 2**30 // KV_BYTES, 256
"""LMCACHE_MAX_LOCAL_CPU_SIZE is of each worker, in GiB; chunks are of 256 tokens."""
PASSES = 4

ASSUMED = (
    f"the 450 prompts are sent {PASSES} times in one shuffled order: the source does not say how often. Its "
    "P90 of TTFT at 8K is below the mean, so it must have been more than once",
    "prompts have the nominal number of tokens; the table's own throughput times latency over 45 says 3 % "
    "more, as random tokens become that are decoded and encoded again",
    "vLLM 0.11, the release of the time: synchronous steps of 8,192 tokens, and KV that leaves in pieces of "
    "16 KB. LMCache gathers such pieces with a kernel, 256 tokens at a time",
    f"blocks of {BLOCK} tokens in place of {REAL_BLOCK}, for speed",
    "41,000 blocks of host RAM an engine for vLLM's own, 100 GiB a worker for LMCache",
    "the router scores 2 for few requests, 2 for free KV and 2 for having been sent the prefix; with offload "
    "1 for that on the device and 1 in host RAM. It remembers its own decisions, by the first 256 blocks",
    "Qwen3-32B on two H100s costs what AIConfigurator says, and as much more as vLLM's curve of Llama-3.1-8B "
    "is above AIConfigurator's profile of that. A first prediction without this factor was too fast; the "
    "factor is from the curves, not from the table",
    "LMCache is vLLM's own connector with a faster copy: what LMCache itself costs is not in the model, "
    "which is seen in its rows of both lengths",
)


class _Sent:
    """Which groups one engine was sent last, as the router's scorer remembers them."""

    def __init__(self, num_blocks: int) -> None:
        self._most = num_blocks // 256
        self._groups: OrderedDict[int, None] = OrderedDict()

    def has(self, group: int) -> bool:
        return group in self._groups

    def add(self, group: int) -> None:
        self._groups[group] = None
        self._groups.move_to_end(group)
        while len(self._groups) > self._most:
            self._groups.popitem(last=False)


class Router:
    """Weighted scores of the engines; the highest is chosen, of equal ones any."""

    def __init__(self, engines: Sequence[Engine], *, offloads: bool) -> None:
        self._engines = engines
        self._device = [_Sent(POOL_TOKENS // REAL_BLOCK) for _ in engines]
        self._host = [_Sent(NATIVE_TOKENS // REAL_BLOCK) for _ in engines]
        self._weights = (1.0, 1.0) if offloads else (2.0, 0.0)
        self._rng = random.Random(1)

    def choose(self, prompt: Prompt) -> int:
        most = max(engine.num_running + engine.num_waiting for engine in self._engines)
        scores = [self._score(number, prompt.group, most) for number in range(len(self._engines))]
        best = max(scores)
        number = self._rng.choice([n for n, score in enumerate(scores) if score >= best - 1e-9])
        self._device[number].add(prompt.group)
        self._host[number].add(prompt.group)
        return number

    def _score(self, number: int, group: int, most: int) -> float:
        engine = self._engines[number]
        active = engine.num_running + engine.num_waiting
        few = (most - active) / most if most else 1.0
        device, host = self._weights
        known = device * self._device[number].has(group) + host * self._host[number].has(group)
        return 2 * few + 2 * (1 - engine.usage) + known


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row of the table, and what of its prompts was found where."""

    row: published.TableRow
    tokens_per_s: float
    mean_ttft_s: float
    mean_e2e_s: float
    device_share: float
    host_share: float

    @property
    def error(self) -> float:
        """Share by which the throughput is off."""
        return self.tokens_per_s / self.row.tokens_per_s - 1


def prompts(system: int, passes: int) -> Iterator[Prompt]:
    """In the order in which they are sent: shuffled once, then again and again."""
    groups = [group for group in range(NUM_GROUPS) for _ in range(PER_GROUP)]
    random.Random(0).shuffle(groups)
    for number, group in enumerate(groups * passes):
        yield Prompt(number, group, system, system + QUESTION, ANSWER)


def copies(config: str) -> tuple[CopyCost, CopyCost]:
    """To the device and to the host, of each GPU."""
    if config == "baseline":
        return FREE_COPY, FREE_COPY
    if config == "native":
        return fitting.copies()
    point = next(p for p in published.transfer_points() if p.piece_bytes == PIECE_BYTES)
    kernel = CopyCost(s_per_byte=1 / point.to_device_by_kernel)
    return kernel, kernel


def _engines(config: str, cost: EngineCost) -> list[Engine]:
    shape = EngineShape(
        block_size=BLOCK,
        num_blocks=POOL_TOKENS // BLOCK,
        max_num_seqs=1024,
        max_num_batched_tokens=fitting.STEP_TOKENS,
        max_model_len=40_960,
        kv_bytes_per_token=KV_BYTES,
        copies_per_block=PIECES_0_11 if config == "native" else 1,
    )
    host = {
        "native": HostShape(NATIVE_TOKENS // BLOCK),
        "lmcache": HostShape(LMCACHE_TOKENS // LMCACHE_CHUNK, LMCACHE_CHUNK // BLOCK),
    }.get(config)
    tiers = Tiers(host) if host is not None else NO_TIERS
    return [Engine(shape, StepCost(cost), tiers) for _ in range(NUM_ENGINES)]


def predict(row: published.TableRow, fitted: fitting.Fitted, passes: int = PASSES) -> Predicted:
    """One row."""
    cost = fitting.qwen(fitted, *copies(row.config))
    engines = _engines(row.config, cost)
    router = Router(engines, offloads=row.config != "baseline")
    clients = Clients(engines, router.choose, CONCURRENCY, cost.front_s, cost.tokens.seconds(1))
    return _predicted(row, clients.run(prompts(SYSTEM[row.scenario], passes)))


def _predicted(row: published.TableRow, served: Sequence[Served]) -> Predicted:
    asked = sum(one.prompt.num_prompt for one in served)
    span_s = max(one.last_s for one in served)
    return Predicted(
        row,
        tokens_per_s=(asked + ANSWER * len(served)) / span_s,
        mean_ttft_s=mean(one.ttft_s for one in served),
        mean_e2e_s=mean(one.e2e_s for one in served),
        device_share=sum(one.num_device for one in served) / asked,
        host_share=sum(one.num_loaded for one in served) / asked,
    )


@dataclass(frozen=True, slots=True)
class Gain:
    """What offloading does to throughput, against the same prompts without it."""

    scenario: str
    config: str
    published: float
    model: float

    @property
    def agrees(self) -> bool:
        """Whether both say that it pays, or both that it does not: by 5 % at least."""
        return (self.published >= WORTH) == (self.model >= WORTH)


WORTH = 0.05
"""Of throughput: less is no reason to run another tier."""


def gains(rows: Sequence[Predicted]) -> Iterator[Gain]:
    """Of each row with offload."""
    without = {one.row.scenario: one for one in rows if one.row.config == "baseline"}
    for one in rows:
        base = without[one.row.scenario]
        if one is not base:
            yield Gain(
                one.row.scenario,
                one.row.config,
                one.row.tokens_per_s / base.row.tokens_per_s - 1,
                one.tokens_per_s / base.tokens_per_s - 1,
            )
