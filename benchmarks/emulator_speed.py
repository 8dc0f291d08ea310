"""emulator-speed: how many one-token answers an emulated engine gives on one core when its steps are free.

`anbar emulate --cost none` is held to one core, and asked from another over 16 connections for completions of
prompts of 400 bytes, no two alike, with the small model's tokenizer. Beside answers per second of the clock
stands answers per second of the emulator's processor time: what a quiet core would give.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import httptools
import psutil
import uvloop
from tests.ports import free_port

from anbar.apps.model import models_dir
from anbar.config.models import DEFAULT_MODEL
from benchmarks.report import Report, Series

NUM_CONNECTIONS = 16
PROMPT_BYTES = 400
TEXT = "The store keeps water and grain for a long winter. The road north is closed, and the house is warm. "
START_TIMEOUT_S = 60.0
WANTED_PER_S = 2000
"""What an emulated engine must give on one core."""


def requests(seed: int) -> Iterator[bytes]:
    """Whole HTTP requests, each with a prompt of its own."""
    rng = random.Random(seed)
    while True:
        prompt = f"{rng.getrandbits(64):x} {TEXT * 4}"[:PROMPT_BYTES]
        body = json.dumps({"model": "m", "max_tokens": 1, "prompt": prompt}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        yield b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, asked: Iterator[bytes]) -> None:
        self._asked = asked
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self.num_answers = 0
        self.num_refusals = 0
        """Answers with another status than 200, and connections that ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.num_refusals += 1

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() == 200:
            self.num_answers += 1
        else:
            self.num_refusals += 1
        self._parser = httptools.HttpResponseParser(self)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None, "connected"
        self._transport.write(next(self._asked))


async def load(port: int, seconds: float, seed: int) -> int:
    """Answers in that time."""
    loop = asyncio.get_running_loop()
    asked = requests(seed)
    made = [
        await loop.create_connection(lambda: Client(asked), "127.0.0.1", port) for _ in range(NUM_CONNECTIONS)
    ]
    before = sum(client.num_answers for _, client in made)
    await asyncio.sleep(seconds)
    num_answers = sum(client.num_answers for _, client in made) - before
    num_refusals = sum(client.num_refusals for _, client in made)
    assert not num_refusals, f"{num_refusals} requests were refused"
    for transport, _ in made:
        transport.abort()
    return num_answers


async def listening(port: int) -> None:
    """Until the emulator takes connections."""
    end_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < end_s, "the emulator did not start"
            await asyncio.sleep(0.2)
        else:
            writer.close()
            return


def measure(rounds: int, seconds: float) -> Report:
    port, model = free_port(), models_dir(os.environ) / DEFAULT_MODEL
    cores = sorted(os.sched_getaffinity(0))
    argv = ["anbar.cli.main", "emulate", "--cost", "none", "--served-model-name", "m", "--port", str(port)]
    command = [sys.executable, "-m", *argv, "--model", str(model), "--num-gpu-blocks-override", "20000"]
    setup: dict[str, object] = {
        "connections": NUM_CONNECTIONS,
        "prompt_bytes": PROMPT_BYTES,
        "seconds": seconds,
        "cores": len(cores),
    }
    report = Report("emulator-speed", "make bench NAME=emulator-speed", setup)
    by_clock, by_processor = Series("s per answer", []), Series("processor s per answer", [])
    report.series = [by_clock, by_processor]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            os.sched_setaffinity(process.pid, {cores[0]})
            os.sched_setaffinity(0, {cores[-1]})
            uvloop.run(listening(port))
            emulator = psutil.Process(process.pid)
            uvloop.run(load(port, 1.0, -1))
            for number in range(rounds):
                before = sum(emulator.cpu_times()[:2])
                num_answers = uvloop.run(load(port, seconds, number))
                by_clock.seconds.append(seconds / num_answers)
                by_processor.seconds.append((sum(emulator.cpu_times()[:2]) - before) / num_answers)
        finally:
            process.terminate()
            os.sched_setaffinity(0, cores)
    rates = 1 / by_clock.median, 1 / by_processor.median
    report.notes = ["{:,.0f} answers a second; {:,.0f} a second of processor time".format(*rates)]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    report = measure(options.rounds, options.seconds)
    report.show()
    print(f"written to {report.write()}")
    rate = 1 / report.series[0].median
    if rate < WANTED_PER_S:
        sys.exit(f"{rate:,.0f} answers a second, wanted: {WANTED_PER_S:,}")


if __name__ == "__main__":
    main()
