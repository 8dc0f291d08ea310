"""Prompts of a trace as text, and clients that send them when the trace says so, answered or not."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from benchmarks.bare_engine import MODEL
from benchmarks.fleet_sim import BLOCK, Ask

STREAM_INTERVAL = 16
"""Tokens in a chunk (vLLM's field): what is measured are choices, not chunks a second."""
GIVE_UP_S = 300.0
_EVENT, _DONE = b"data: ", b"data: [DONE]"


@dataclass
class Timing:
    """What came of one request, in seconds from when it should have been sent."""

    status: int = 0
    """0: no answer came."""
    first_s: float = 0.0
    end_s: float = 0.0
    late_s: float = 0.0
    """How late it was sent: the client's own delay."""


class Prompts:
    """Texts of which each word is one token, in which equal blocks of the trace are equal words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._block = cache(self._words_of)

    def _words_of(self, block: int) -> str:
        return "".join(Random(block).choices(self._words, k=BLOCK))

    def body(self, ask: Ask) -> bytes:
        rest = ask.num_prompt - BLOCK * len(ask.blocks)
        own = "".join(Random(f"own {ask.number}").choices(self._words, k=rest))
        text = "".join(map(self._block, ask.blocks)) + own
        fields = {"model": MODEL, "prompt": text, "max_tokens": ask.num_answer, "stream": True}
        return json.dumps(fields | {"ignore_eos": True, "stream_interval": STREAM_INTERVAL}).encode()


async def drive(port: int, asks: Sequence[Ask], bodies: Sequence[bytes], slow: float) -> list[Timing]:
    """Send each at its time, `slow` times slower than the asks say; answers in their order."""
    start_s = time.perf_counter() + 0.5
    timings = [Timing() for _ in asks]
    calls = [
        asyncio.create_task(_call(port, body, start_s + ask.at_s * slow, timing))
        for ask, body, timing in zip(asks, bodies, timings, strict=True)
    ]
    await asyncio.gather(*calls)
    return timings


async def _call(port: int, body: bytes, at_s: float, timing: Timing) -> None:
    await asyncio.sleep(at_s - time.perf_counter())
    timing.late_s = time.perf_counter() - at_s
    try:
        async with asyncio.timeout(GIVE_UP_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                head = (
                    b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                )
                writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
                await _read(reader, at_s, timing)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        timing.status = 0


async def _read(reader: asyncio.StreamReader, at_s: float, timing: Timing) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status, tail = int(head.split(b" ", 2)[1]), b""
    while data := await reader.read(2**16):
        tail = tail[-len(_DONE) :] + data
        if not timing.first_s and _EVENT in tail:
            timing.first_s = time.perf_counter() - at_s
        if _DONE in tail:
            timing.end_s = time.perf_counter() - at_s
            timing.status = status
            return
        if status != 200:
            break
    timing.status = status if status != 200 else 0
