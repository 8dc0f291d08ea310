"""Engines of the model in virtual time, kept busy by clients of whom each waits for its answer."""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine
from anbar.sim.engine.request import BlockKey, EngineRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. Prompts of the same `group` have their first `num_shared` tokens in common."""

    number: int
    group: int
    num_shared: int
    num_prompt: int
    num_answer: int

    def request(self, block_size: int) -> EngineRequest:
        """As an engine gets it."""
        keys = _Keys(self, self.num_shared // block_size)
        return EngineRequest(RequestId(str(self.number)), self.num_prompt, self.num_answer, keys)


class _Keys:
    """Keys of a request's blocks: numbers, of which a group's own are the same for all of it."""

    def __init__(self, prompt: Prompt, num_shared: int) -> None:
        self._next = (1 << 40) + (prompt.number << 20)
        start = prompt.group << 20
        self._keys = list(range(start, start + num_shared))

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        while len(self._keys) < num_blocks:
            self._keys.append(self._next)
            self._next += 1
        return self._keys[:num_blocks]


@dataclass(slots=True)
class Served:
    """What became of a request, in seconds since the start."""

    prompt: Prompt
    engine: int
    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_device: int = 0
    num_loaded: int = 0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.last_s - self.sent_s


Choose = Callable[[Prompt], int]


@dataclass
class Clients:
    """`concurrency` clients that send `prompts` one after the other to the engine that `choose` names.

    `front_s`: what each request spends outside of engines before it is there. `least_step_s`: no step of an
    engine is shorter; the longer it is, the more decode steps are taken in one stride.
    """

    engines: Sequence[Engine]
    choose: Choose
    concurrency: int
    front_s: float = 0.0
    least_step_s: float = 0.0
    served: list[Served] = field(default_factory=list)
    _of: dict[RequestId, Served] = field(default_factory=dict)
    _ends: list[tuple[float, int]] = field(default_factory=list)
    _coming: list[tuple[float, int, Prompt]] = field(default_factory=list)
    _busy: dict[int, float] = field(default_factory=dict)
    """Engines with a step under way, and a time before which none of their answers ends."""
    _now_s: float = 0.0

    def run(self, prompts: Iterator[Prompt]) -> list[Served]:
        """To the last answer."""
        for _ in range(self.concurrency):
            self._send(prompts)
        while self._coming or self._ends:
            if self._ends and (not self._coming or self._ends[0][0] < self._coming[0][0]):
                self._now_s, number = heapq.heappop(self._ends)
                self._finish(number, prompts)
                self._start(number)
            else:
                self._now_s, _, prompt = heapq.heappop(self._coming)
                self._arrive(prompt)
        return self.served

    def _send(self, prompts: Iterator[Prompt]) -> None:
        prompt = next(prompts, None)
        if prompt is not None:
            heapq.heappush(self._coming, (self._now_s + self.front_s, prompt.number, prompt))

    def _arrive(self, prompt: Prompt) -> None:
        number = self.choose(prompt)
        request = prompt.request(self.engines[number].shape.block_size)
        self._of[request.id] = Served(prompt, number, self._now_s - self.front_s)
        self.engines[number].add(request)
        if not (self._coming and self._coming[0][0] == self._now_s):  # what comes at once is planned together
            for idle in set(range(len(self.engines))) - set(self._busy):
                self._start(idle)

    def _start(self, number: int) -> None:
        """A step, or as many as end before the next request can come."""
        engine, others = self.engines[number], [s for n, s in self._busy.items() if n != number]
        coming_s = self._coming[0][0] if self._coming else math.inf
        running = engine.start_step(self._now_s, min([coming_s, *(s + self.front_s for s in others)]))
        if running is None:
            self._busy.pop(number, None)
            return
        there = [*engine.scheduler.running(), *engine.scheduler.waiting()]
        left = [one.num_answer_tokens - one.num_generated for one in there]
        steps_left = max(0, min(left, default=0) - running.step.num_repeats)
        self._busy[number] = running.ends_s + self.least_step_s * steps_left
        heapq.heappush(self._ends, (running.ends_s, number))

    def _finish(self, number: int, prompts: Iterator[Prompt]) -> None:
        for output in self.engines[number].finish_step().outputs:
            request = output.request
            served = self._of[request.id]
            if not served.first_s:
                served.first_s = self._now_s
                served.num_device, served.num_loaded = request.num_device_hit, request.num_external_hit
            if output.finished:
                served.last_s = self._now_s
                del self._of[request.id]
                self.served.append(served)
                self._send(prompts)
