"""A real vLLM engine whose requests are preempted: with nothing below the device, host RAM, and a store, too.

Four requests at once need more KV than the device has; then the same chats go on by another question. What
vLLM counts as computed leaves out what preempted requests compute again, so the order shows in the time that
it takes and in the tokens that were brought back.
"""

import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.engine.engine import MIB, Answer, Engine, EngineConfig, native, plain
from tests.ports import free_port

from anbar.apps import interpreter, model
from anbar.config.models import CacheConfig, CacheMode
from anbar.config.stores import StoreConfig
from benchmarks.report import Report

NUM_BLOCKS, MAX_MODEL_LEN = 44, 1024
"""Of 32 tokens: 1,376 in all, where the requests want up to 2,240."""
NUM_REQUESTS, PROMPT, ANSWER, FURTHER = 4, 320, 96, 64
KV_BYTES_PER_TOKEN = 46_080


def real(report: Report) -> None:
    """The three, one after the other, with the same requests."""
    python, _ = interpreter.choose(os.environ)
    found = interpreter.inspect(python, "benchmark")
    directory = model.ensure_default(found, model.models_dir(os.environ), print)
    report.setup |= {
        "model": "SmolLM2-135M, float32",
        "device_tokens": (NUM_BLOCKS - 1) * 32,
        "load_average_before": os.getloadavg()[0],
    }
    for mode in ("none", "native", "shared"):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            cache = _cache(mode, Path(scratch))
            config = EngineConfig(
                f"anbar-bench-{os.getpid()}-{mode}", directory, cache, NUM_BLOCKS, MAX_MODEL_LEN
            )
            engine = Engine(python, config, free_port(), Path(scratch) / "engine.log")
            try:
                engine.start()
                engine.wait_ready()
                _measure(report, mode, engine)
            finally:
                engine.kill()


def _cache(mode: str, scratch: Path) -> CacheConfig:
    if mode != "shared":
        return plain() if mode == "none" else native()
    store = StoreConfig(path=scratch / "store", id="bench")
    return CacheConfig(mode=CacheMode.SHARED, host_bytes=256 * MIB, store=store)


def _measure(report: Report, mode: str, engine: Engine) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(100, 40_000) for _ in range(PROMPT)] for _ in range(NUM_REQUESTS)]
    engine.complete([rng.randrange(100, 40_000) for _ in range(256)], 2)  # the first of all is slow
    began_s = time.monotonic()
    _at_once(engine, prompts)
    _at_once(engine, [prompt + [rng.randrange(100, 40_000) for _ in range(FURTHER)] for prompt in prompts])
    seconds = time.monotonic() - began_s
    computed = engine.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    loaded = engine.metric("vllm:kv_offload_load_bytes_total") / KV_BYTES_PER_TOKEN
    report.figures |= {
        f"{mode}: seconds": round(seconds, 1),
        f"{mode}: answers' tokens per second": round(2 * NUM_REQUESTS * ANSWER / seconds, 2),
        f"{mode}: preemptions": engine.metric("vllm:num_preemptions_total"),
        f"{mode}: prompt tokens computed, without what was computed again": computed,
        f"{mode}: tokens brought back to the device": round(loaded),
    }


def _at_once(engine: Engine, prompts: list[list[int]]) -> list[Answer]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: engine.complete(prompt, ANSWER), prompts))
