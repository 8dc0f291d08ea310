"""router-index: what the prefix index costs: memory per block, time per event and per look-up, and its
pauses.

Every measurement has a process of its own. Times are the processor's, so that a busy machine changes them
little.

- *Events*: payloads as vLLM 0.32 encodes them, decoded and applied. One event of one block is a decode step
  that filled a block; one of 512 blocks is a prefill of 8,192 tokens.
- *Look-ups*: a prompt of 131,072 tokens, all of which eight engines hold, in an index of a million blocks.
  Hashing it for the first time, hashing it again with one new turn of 200 tokens, and looking it up for all
  eight.
- *Memory*: growth of the resident set while half a million blocks are stored on 1, 4 and 8 engines, and on
  each engine with a chance of one half, so that all 255 sets of engines occur.
- *Growth*: removal, restart and the longest pauses, at 200,000, a million and ten million blocks.
"""

import argparse
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import psutil

from anbar.adapters.vllm.kv_publish import BlockStored, encode_batch
from anbar.adapters.vllm.kv_wire import Message, decode_message
from anbar.core.events import BlocksRemoved, BlocksStored, KvBatch, Tier
from anbar.core.ids import EngineHash, EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route import EngineProfile, PrefixIndex, PromptChains, ResidencyLimits
from benchmarks.report import Report, Series

BLOCK = 16
PROMPT_TOKENS = 131_072
TURN_TOKENS = 200
ENGINES = [EngineId(f"e{number}") for number in range(8)]
EVENT_BLOCKS = 64
NUM_BLOCKS = 500_000
SIZES = (200_000, 1_000_000, 10_000_000)
NUM_REMOVED = 150_000
"""Blocks that are removed; of the first 100,000 the names are kept, of the others nothing."""


def index_of(num_engines: int) -> PrefixIndex:
    index = PrefixIndex(limits=ResidencyLimits(max_blocks=2 * SIZES[-1]))
    for engine in ENGINES[:num_engines]:
        index.attach(engine, EngineProfile("m", BLOCK, 0, "f"))
    return index


def name(number: int) -> EngineHash:
    """A hash as uniform as vLLM's."""
    return EngineHash((number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "big"))


def stored(first: int, num_blocks: int) -> BlocksStored:
    """An event of blocks `first`, … of a prompt of its own."""
    names = tuple(name(number) for number in range(first, first + num_blocks))
    tokens = (first & 0xFFFFFFFF, *range(1, num_blocks * BLOCK))
    return BlocksStored(names, None, tokens, BLOCK, Tier.DEVICE)


def events(num_blocks: int) -> Iterator[BlocksStored]:
    return (stored(first, EVENT_BLOCKS) for first in range(0, num_blocks, EVENT_BLOCKS))


def took_s(call: Callable[[], object]) -> float:
    before_s = time.thread_time()
    call()
    return time.thread_time() - before_s


def taking_in(seed: int) -> dict[str, float]:
    """Seconds to decode and to apply events of one block and of many."""
    found: dict[str, float] = {}
    rng = random.Random(seed)
    for label, num_blocks, num_events in (("1 block", 1, 20_000), ("512 blocks", 512, 100)):
        index, decode_s, apply_s = index_of(1), 0.0, 0.0
        for event in events(100_000):
            index.apply(ENGINES[0], KvBatch(0, (event,)), 0.0)
        for number in range(num_events):
            tokens = [rng.randrange(50_000) for _ in range(num_blocks * BLOCK)]
            hashes = [rng.getrandbits(64) for _ in range(num_blocks)]
            event = BlockStored(hashes, None, tokens, BLOCK, None, "GPU", None, [None] * num_blocks, 0)
            message = Message(number, encode_batch([event], 1.0))
            before_s = time.thread_time()
            batch = decode_message(message)
            decoded_s = time.thread_time()
            index.apply(ENGINES[0], batch, 0.0)
            apply_s += time.thread_time() - decoded_s
            decode_s += decoded_s - before_s
        found[f"decode an event of {label}"] = decode_s / num_events
        found[f"apply an event of {label}"] = apply_s / num_events
    return found


def looking_up(seed: int) -> dict[str, float]:
    """Seconds for a long prompt."""
    index, chains, rng = index_of(8), PromptChains(), random.Random(seed)
    for event in events(NUM_BLOCKS):
        index.apply(ENGINES[0], KvBatch(0, (event,)), 0.0)
    tokens = tuple(rng.randrange(50_000) for _ in range(PROMPT_TOKENS))
    longer = (*tokens, *(rng.randrange(50_000) for _ in range(TURN_TOKENS)))
    query, next_turn, fresh = (
        RouteQuery(RequestId("r"), "m", ids, len(ids)) for ids in (tokens, longer, tokens[::-1])
    )
    names = tuple(EngineHash(rng.randbytes(8)) for _ in range(PROMPT_TOKENS // BLOCK))
    prompt = KvBatch(0, (BlocksStored(names, None, tokens, BLOCK, Tier.DEVICE),))
    for engine in ENGINES:
        index.apply(engine, prompt, 0.0)
    found = {
        "hash 128k tokens, new text": took_s(lambda: chains.of(query, "m", BLOCK)),
        "hash 128k tokens, one new turn": took_s(lambda: chains.of(next_turn, "m", BLOCK)),
    }
    matches = index.match(query, ENGINES, 0.0)
    assert all(match.device == PROMPT_TOKENS - BLOCK for match in matches.values())
    found["look up 128k tokens for 8 engines"] = took_s(lambda: index.match(query, ENGINES, 0.0))
    index.match(fresh, ENGINES, 0.0)
    found["look up 128k tokens that nobody has"] = took_s(lambda: index.match(fresh, ENGINES, 0.0))
    return found


def bytes_per_holding(num_engines: int, *, scattered: bool) -> float:
    """Growth of the resident set per block and engine holding it."""
    index, rng, num_held = index_of(num_engines), random.Random(1), 0
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for event in events(NUM_BLOCKS):
        for engine in ENGINES[:num_engines]:
            if not scattered or rng.random() < 0.5:
                index.apply(engine, KvBatch(0, (event,)), 0.0)
                num_held += EVENT_BLOCKS
    del event
    gc.collect()
    return (process.memory_info().rss - before) / num_held


@dataclass
class Growth:
    """Seconds, at one size of the index."""

    num_blocks: int
    store_s: float = 0.0
    """Per block, on the way there."""
    longest_store_s: float = 0.0
    """Of one event of 64 blocks."""
    remove_s: float = 0.0
    """Per block."""
    forget_s: float = 0.0
    longest_sweep_s: float = 0.0
    """Of one event after `forget`, its sweep included."""


def growing(num_blocks: int) -> Growth:
    index, found = index_of(1), Growth(num_blocks)
    gc.disable()  # the router's collector looks seldom too
    for event in events(num_blocks):
        batch = KvBatch(0, (event,))
        apply_s = took_s(lambda: index.apply(ENGINES[0], batch, 0.0))  # noqa: B023
        found.store_s += apply_s / num_blocks
        found.longest_store_s = max(found.longest_store_s, apply_s)
    numbers = random.Random(1).sample(range(num_blocks), NUM_REMOVED)
    for first in range(0, NUM_REMOVED, EVENT_BLOCKS):
        names = tuple(name(number) for number in numbers[first : first + EVENT_BLOCKS])
        batch = KvBatch(0, (BlocksRemoved(names, Tier.DEVICE),))
        found.remove_s += took_s(lambda: index.apply(ENGINES[0], batch, 0.0)) / NUM_REMOVED  # noqa: B023
    found.forget_s = took_s(lambda: index.forget(ENGINES[0]))
    empty = KvBatch(0, ())
    for _ in range(2000):
        found.longest_sweep_s = max(
            found.longest_sweep_s, took_s(lambda: index.apply(ENGINES[0], empty, 0.0))
        )
    return found


def apart(function: Callable[..., object], *arguments: object, **named: object) -> object:
    """Call a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **named).result()


def measure(rounds: int, largest: int) -> Report:
    report = Report(
        name="router-index",
        command="make bench NAME=router-index",
        setup={
            "blocks": NUM_BLOCKS,
            "block_size": BLOCK,
            "prompt_tokens": PROMPT_TOKENS,
            "largest": largest,
            "load_average_before": os.getloadavg()[0],
        },
    )
    series: dict[str, Series] = {}
    for number in range(rounds):
        for function in (taking_in, looking_up):
            found = apart(function, number)
            assert isinstance(found, dict)
            for label, seconds in found.items():
                series.setdefault(label, Series(label, [])).seconds.append(seconds)
    for num_blocks in (size for size in SIZES if size <= largest):
        growth = apart(growing, num_blocks)
        assert isinstance(growth, Growth)
        for label, seconds in (
            ("store a block", growth.store_s),
            ("longest event of 64 blocks", growth.longest_store_s),
            ("remove a block", growth.remove_s),
            ("forget an engine", growth.forget_s),
            ("longest sweep after that", growth.longest_sweep_s),
        ):
            name_ = f"{label}, {num_blocks:,} blocks"
            series[name_] = Series(name_, [seconds])
    report.series = sorted(series.values(), key=lambda each: each.name)
    for num_engines in (1, 4, 8):
        size = apart(bytes_per_holding, num_engines, scattered=False)
        report.figures[f"bytes per block and engine, {num_engines} engines"] = round(float(str(size)), 1)
    size = apart(bytes_per_holding, 8, scattered=True)
    report.figures["bytes per block and engine, each of 8 engines or not"] = round(float(str(size)), 1)
    for label in ("1 block", "512 blocks"):
        both = [series[f"{verb} an event of {label}"].median for verb in ("decode", "apply")]
        report.figures[f"events of {label} a second"] = round(1 / sum(both))
    for label in ("hash 128k tokens, one new turn", "look up 128k tokens for 8 engines"):
        report.figures[f"{label}: a second"] = round(1 / series[label].median)
    smallest, biggest = (
        series[f"remove a block, {size:,} blocks"] for size in (SIZES[0], min(largest, SIZES[-1]))
    )
    report.ratio("removal at the largest size / at the smallest", biggest, smallest)
    return report


def main() -> None:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=SIZES[-1], choices=SIZES)
    options = parser.parse_args()
    report = measure(options.rounds, options.largest)
    report.show()
    print(f"written: {report.write()}")


if __name__ == "__main__":
    main()
