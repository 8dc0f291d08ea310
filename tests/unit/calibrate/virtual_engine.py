"""An engine in virtual time: the engine model behind the port of calibration."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from anbar.apps.calibrate.metrics_page import Counters
from anbar.apps.calibrate.target import Ask, Timeline
from anbar.core.clock import ManualClock
from anbar.core.cost import EngineCost
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import NO_TIERS, Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.shape import EngineShape


class TokenKeys:
    """Keys of a prompt's blocks: all tokens up to their end. Answers never repeat, so theirs are unique."""

    def __init__(self, prompt: Sequence[int], block_size: int) -> None:
        self._size = block_size
        self._num_prompt = len(prompt) // block_size
        self._keys: list[BlockKey] = [
            hash(tuple(prompt[: (i + 1) * block_size])) for i in range(self._num_prompt)
        ]

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        while len(self._keys) < num_blocks:
            self._keys.append((id(self), len(self._keys)))
        return self._keys[:num_blocks]


@dataclass(eq=False)
class _Sent:
    request: EngineRequest
    sent_s: float
    token_s: list[float] = field(default_factory=list)


class VirtualEngine:
    """`Target` whose clock moves only while it works. `noise` is the spread (sigma) of a step's time."""

    def __init__(
        self,
        shape: EngineShape,
        cost: EngineCost,
        tiers: Tiers = NO_TIERS,
        *,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.clock = ManualClock()
        self.engine = Engine(shape, StepCost(cost), tiers)
        self.num_running = 0
        """What its metrics say, for somebody else's requests."""
        self.can_clear = True
        self._cost = cost
        self._front_s = cost.front_seconds(num_text_tokens=0)  # it is asked with token ids
        self._noise = noise
        self._rng = random.Random(seed)
        self._num_sent = 0

    async def run(self, asks: Sequence[Ask]) -> list[Timeline]:
        return self.play(asks)

    async def counters(self) -> Counters:
        totals, size = self.engine.counters, self.engine.shape.kv_bytes_per_token
        return Counters(
            num_running=self.num_running,
            prompt_tokens=totals.num_prompt,
            external_tokens=totals.num_prompt_external_hit,
            load_bytes=totals.num_loaded * size,
            load_s=totals.num_loaded * size * self._cost.load.s_per_byte,
            store_bytes=totals.num_stored * size,
            store_s=totals.num_stored * size * self._cost.store.s_per_byte,
        )

    async def clear_device(self) -> bool:
        return self.can_clear and self.engine.clear_cache()

    async def tokenize_s(self, text: str) -> tuple[float, int]:
        tokens = len(text.split())
        return 0.001 + tokens * self._cost.front_s_per_token, tokens

    def play(self, asks: Sequence[Ask]) -> list[Timeline]:
        """Send each at its delay, run until all are answered."""
        start_s = self.clock.now_s()
        sent = [self._sent(ask, start_s + ask.delay_s) for ask in asks]
        queue = sorted(sent, key=lambda one: one.sent_s)
        by_id = {one.request.id: one for one in sent}
        self._admit(queue)
        while queue or self.engine.num_running or self.engine.num_waiting:
            running = self.engine.start_step(self.clock.now_s(), until_s=self.clock.now_s())
            if running is None:
                self._wait_until(queue[0].sent_s + self._front_s)
            else:
                length_s = running.ends_s - self.clock.now_s()
                self.clock.advance(length_s * max(0.1, self._rng.gauss(1.0, self._noise)))
                self._admit(queue)
                for output in self.engine.finish_step().outputs:
                    by_id[output.request.id].token_s += [self.clock.now_s()] * output.num_tokens
            self._admit(queue)
        return [
            Timeline(
                one.sent_s, tuple(one.token_s), one.request.num_prompt_tokens, one.request.num_cached_tokens
            )
            for one in sent
        ]

    def _sent(self, ask: Ask, sent_s: float) -> _Sent:
        self._num_sent += 1
        keys = TokenKeys(ask.prompt, self.engine.shape.block_size)
        request_id = RequestId(f"r{self._num_sent}")
        return _Sent(EngineRequest(request_id, len(ask.prompt), ask.num_tokens, keys), sent_s)

    def _admit(self, queue: list[_Sent]) -> None:
        while queue and queue[0].sent_s + self._front_s <= self.clock.now_s() + 1e-12:
            self.engine.add(queue.pop(0).request)

    def _wait_until(self, at_s: float) -> None:
        self.clock.advance(max(0.0, at_s - self.clock.now_s()))
