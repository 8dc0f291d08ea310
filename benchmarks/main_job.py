"""main-job: what the KV cache is worth when it outlives its engine's device.

Per round one prompt that nobody has seen, three ways to its first token:

- *computed*: through the router, nothing cached anywhere;
- *loaded*: on the other engine, straight, which has it from the shared store;
- *routed warm*: through the router, which sends it back to the engine that holds it.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import httpx
from tests.e2e.stack import MODEL, Stack, prose, run_stack
from tests.ports import free_ports

from benchmarks.report import Report, Series

NUM_WORDS = 1000
"""One token each."""


def direct_ttft(url: str, prompt: str) -> tuple[float, int]:
    """Seconds to the first token on one engine without the router, and the tokens it did not compute."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, ttft_s, cached = time.monotonic(), 0.0, 0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                ttft_s = ttft_s or time.monotonic() - start
                usage = json.loads(line[6:]).get("usage") or {}
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or cached
    return ttft_s, cached


def measure(stack: Stack, rounds: int, dtype: str) -> Report:
    """Run the rounds; raises AssertionError when a step was not what its name says."""
    computed, loaded, warm, lengths = [], [], [], []
    for number in range(rounds + 1):
        prompt = prose(9000 + number, NUM_WORDS)
        cold = stack.complete(prompt, max_tokens=1)
        assert cold.cached == 0, "the prompt was cached before it was sent"
        stack.settle()
        engines = stack.engines()
        (other,) = set(engines) - {cold.engine}
        loaded_s, cached = direct_ttft(engines[other].url, prompt)
        assert cached > 0.9 * cold.prompt_tokens, f"only {cached} tokens came from the store"
        again = stack.complete(prompt, max_tokens=1)
        assert again.cached > 0.9 * cold.prompt_tokens, f"routed to {again.engine}, {again.cached} cached"
        if number:  # the first round warms up the engines themselves
            computed.append(cold.ttft_s)
            loaded.append(loaded_s)
            warm.append(again.ttft_s)
            lengths.append(cold.prompt_tokens)
    report = Report(
        name="main-job",
        command="make bench NAME=main-job",
        setup={
            "model": MODEL,
            "vllm": httpx.get(f"{next(iter(stack.engines().values())).url}/version").json()["version"],
            "dtype": dtype,
            "engines": 2,
            "store": "files",
            "prompt_tokens": lengths,
        },
        series=[Series("computed", computed), Series("loaded", loaded), Series("routed warm", warm)],
    )
    report.ratio("computed / loaded on the other engine", report.series[0], report.series[1])
    report.ratio("computed / routed warm", report.series[0], report.series[2])
    return report


def main() -> None:
    """Start a stack, measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32", help="float32 is what every CPU computes well")
    options = parser.parse_args()
    router_port, engine_port, _ = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as directory:
        config = {
            "state_dir": f"{directory}/state",
            "engines": [
                {"name": "small", "launch": {"count": 2, "port": engine_port, "dtype": options.dtype}}
            ],
            "router": {"port": router_port},
        }
        with run_stack(config, Path(directory)) as stack:
            report = measure(stack, options.rounds, options.dtype)
    report.show()
    print(f"written: {report.write().relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
