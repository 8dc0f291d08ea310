"""What stands for the GPU: who runs, how long prefill and decode take, and what the cache did.

Prefills run one after the other (they are compute bound), decodes side by side. A request that finds no
blocks waits, and one that runs out of blocks while it decodes is preempted: it gives up its blocks and is
admitted again with what it has generated.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from anbar.testing.fake_engine.blocks import Allocation, Identity, NoFreeBlocks, PagedCache
from anbar.testing.fake_engine.wire import Publisher


@dataclass(slots=True)
class Pace:
    """How slow the fake is; all zero: as fast as it can. Settable at any time."""

    prefill_s_per_token: float = 0.0
    """For each prompt token that is not cached."""
    load_s_per_token: float = 0.0
    """For each prompt token that comes from host RAM or the shared store."""
    overhead_s: float = 0.0
    """For each request, before its prefill."""
    token_s: float = 0.0
    """Between generated tokens."""


@dataclass(slots=True)
class Counters:
    """What `/metrics` shows, and what tests assert on."""

    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    shared_tokens: int = 0
    prefix_queries: int = 0
    external_queries: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})


class Scheduler:
    """Admits requests into the cache and lets them compute."""

    def __init__(self, cache: PagedCache, publisher: Publisher | None, pace: Pace, max_num_seqs: int) -> None:
        self.cache = cache
        self.publisher = publisher
        self.counters = Counters()
        self._pace = pace
        self._max_num_seqs = max_num_seqs
        self._prefilling = asyncio.Lock()
        self._waiters: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def run(
        self, prompt: Sequence[int], identity: Identity, *, reads_cache: bool = True
    ) -> AsyncIterator[Allocation]:
        """One sequence from admission to the release of its blocks, its prefill already done on entry."""
        seq = await self._admit(prompt, identity, reads_cache=reads_cache)
        try:
            self._count_prompt(seq)
            await self._prefill(seq)
            yield seq
        finally:
            self.counters.running -= 1
            self.cache.release(seq)
            self.publish()
            self._wake()

    async def step(self, seq: Allocation, token: int) -> None:
        """Compute the KV of a generated token, so that the next one can follow."""
        if self._pace.token_s:
            await asyncio.sleep(self._pace.token_s)
        try:
            self.cache.append(seq, token)
        except NoFreeBlocks:
            await self._preempt(seq, token)
        self.publish()

    def publish(self) -> None:
        """Send what the cache did since the last call as one batch."""
        events = self.cache.take_events()
        if self.publisher is not None:
            self.publisher.publish(events)

    async def _admit(
        self, tokens: Sequence[int], identity: Identity, *, reads_cache: bool = True
    ) -> Allocation:
        counters = self.counters
        counters.waiting += 1
        try:
            while True:
                if counters.running < self._max_num_seqs:
                    try:
                        seq = self.cache.admit(tokens, identity, reads_cache=reads_cache)
                        break
                    except NoFreeBlocks:
                        pass
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
        finally:
            counters.waiting -= 1
        counters.running += 1
        return seq

    async def _preempt(self, seq: Allocation, token: int) -> None:
        self.counters.preemptions += 1
        self.counters.running -= 1
        self.cache.release(seq)
        self._wake()
        again = await self._admit([*seq.tokens, token], seq.identity)
        seq.tokens, seq.hashes, seq.blocks = again.tokens, again.hashes, again.blocks
        seq.num_cached_blocks = again.num_cached_blocks
        await self._prefill(again)

    def _wake(self) -> None:
        """Let everybody who waits look again, in their order."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _prefill(self, seq: Allocation) -> None:
        pace = self._pace
        loaded = seq.num_host + seq.num_shared
        computed = len(seq.tokens) - seq.num_cached_tokens
        seconds = pace.overhead_s + computed * pace.prefill_s_per_token + loaded * pace.load_s_per_token
        if seconds:
            async with self._prefilling:
                await asyncio.sleep(seconds)
        self.publish()

    def _count_prompt(self, seq: Allocation) -> None:
        counters = self.counters
        counters.prompt_tokens += len(seq.tokens)
        counters.device_tokens += seq.num_device
        counters.host_tokens += seq.num_host
        counters.shared_tokens += seq.num_shared
        counters.prefix_queries += len(seq.tokens)
        counters.external_queries += len(seq.tokens) - seq.num_device
