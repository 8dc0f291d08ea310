"""What is measured, in which order, and for how long.

Each round measures every case once, so that a drift of the machine spreads over all of them and the rounds
differ by what runs differ by: prompts of growing length, prompts with a cached prefix, decodes by batch and
context, a prompt beside decodes. How far lengths and batches go is decided by what the first ones took.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anbar.apps.calibrate.prompts import Prompts
from anbar.apps.calibrate.target import Ask, EngineFacts, Target, Timeline
from anbar.apps.calibrate.work import Kind, Sample, Work, decode_work, mixed_work, prompt_work
from anbar.core.clock import Clock
from anbar.core.errors import MeasureError

SHORT = 16
"""Tokens of the shortest prompts, and of the contexts of short decodes."""
_EXTENSION = 64
_MIXED = ((2, 64), (4, 256))
"""(Decodes, tokens of the prompt beside them)."""
_LEAST_WINDOW = 3
"""Fewer steps with the whole batch are no measurement."""
_PROBE = 128
_PROMPT_SHARE = 0.45
"""Of the time is for prompts that nothing is cached of."""
_DECODE_SHARE = 0.35

Progress = Callable[[str, float], None]
"""Called with what is being measured and the share that is done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured at most."""

    seconds: float
    """About how long it may take, host memory not counted."""
    num_rounds: int
    max_prompt_tokens: int
    max_batch: int
    num_decode_tokens: int
    """Answer tokens of the decodes that are measured."""


QUICK = Plan(seconds=40.0, num_rounds=3, max_prompt_tokens=2048, max_batch=64, num_decode_tokens=8)
FULL = Plan(seconds=180.0, num_rounds=5, max_prompt_tokens=16384, max_batch=256, num_decode_tokens=16)


class Campaign:
    """One calibration of one engine; `samples` grow while it runs."""

    def __init__(
        self, target: Target, facts: EngineFacts, prompts: Prompts, plan: Plan, budget: int, clock: Clock
    ) -> None:
        """`budget`: the engine's `max_num_batched_tokens`."""
        self.samples: list[Sample] = []
        self.computed: list[tuple[int, ...]] = []
        """Prompts that the engine has computed, which its caches should have: longest first, then newest."""
        self.lengths = [SHORT]
        """Of the prompts that nothing is cached of, growing; decided when the first ones were measured."""
        self._target = target
        self._facts = facts
        self._prompts = prompts
        self._plan = plan
        self._budget = budget
        self._clock = clock
        self._num_answer = 2 if facts.has_offload else 1
        """Tokens asked for behind a prompt. The step that stores one is the next: its own second token's, or
        else that of whatever is measured next."""

    async def run(self, progress: Progress) -> None:
        """Measure all rounds. Raises MeasureError when the engine does not answer as it should."""
        started_s = self._clock.now_s()
        progress("warming up", 0.0)
        self.lengths = self._affordable(await self._warm_up())
        stages = (
            ("prompts", self._prompt_cases),
            ("prompts with a cached prefix", self._extension_cases),
            ("decodes", self._decode_cases),
            ("prompts beside decodes", self._mixed_cases),
        )
        for number in range(self._plan.num_rounds):
            now_s = self._clock.now_s()
            if number > 1 and (now_s - started_s) * (number + 1) / number > 1.3 * self._plan.seconds:
                break
            for stage, (name, measure) in enumerate(stages):
                done = (number + stage / len(stages)) / self._plan.num_rounds
                progress(f"{name}, round {number + 1} of {self._plan.num_rounds}", done)
                await measure(number)

    async def _warm_up(self) -> float:
        """Seconds of a prompt of _PROBE tokens: the least of three, after one that is not counted."""
        await self._target.run([Ask(self._prompts.fresh(_PROBE), 2)])
        probes = [
            await self._target.run([Ask(self._prompts.fresh(_PROBE), self._num_answer)]) for _ in range(3)
        ]
        return min(timeline.ttft_s for (timeline,) in probes)

    def _affordable(self, probe_s: float) -> list[int]:
        """Doubling lengths that all rounds have time for; a sum of doubling terms is twice the last."""
        capacity = self._facts.num_blocks * self._facts.block_size // 2 or self._plan.max_prompt_tokens
        most = min(self._plan.max_prompt_tokens, self._facts.max_model_len - _EXTENSION - 2, capacity)
        allowed_s = self._plan.seconds * _PROMPT_SHARE / self._plan.num_rounds
        lengths = [SHORT]
        while lengths[-1] * 2 <= most:
            if lengths[-1] >= _PROBE and probe_s * (lengths[-1] * 4 / _PROBE) > allowed_s:
                break
            lengths.append(lengths[-1] * 2)
        return lengths

    async def _prompt_cases(self, number: int) -> None:
        for length in self.lengths:
            prompt = self._prompts.fresh(length)
            await self._prompt(Kind.PROMPT, number, prompt)
            self.computed.insert(0, prompt)
        self.computed.sort(key=len, reverse=True)

    async def _extension_cases(self, number: int) -> None:
        longest, *_ = self.computed
        for length in sorted({len(longest), len(longest) // 4}):
            if length >= self._facts.block_size:
                await self._prompt(Kind.EXTENSION, number, longest[:length] + self._prompts.fresh(_EXTENSION))

    async def _prompt(self, kind: Kind, number: int, prompt: tuple[int, ...]) -> None:
        (timeline,) = await self._target.run([Ask(prompt, self._num_answer)])
        if timeline.ttft_s <= 0:
            raise MeasureError(f"{self._facts.url}: an answer came before it was asked for")
        cached = timeline.num_cached
        work = prompt_work(timeline.num_prompt_tokens, cached, self._budget)
        case = f"{timeline.num_prompt_tokens} tokens" + (f", {cached} of them cached" if cached else "")
        self.samples.append(Sample(kind, case, number, work, timeline.ttft_s))

    async def _decode_cases(self, number: int) -> None:
        allowed_s = self._plan.seconds * _DECODE_SHARE / self._plan.num_rounds
        started_s = self._clock.now_s()
        for batch in self._batches():
            before_s = self._clock.now_s()
            short = [self._prompts.fresh(SHORT) for _ in range(batch)]
            if not await self._decodes("short", number, short):
                break
            long = [prompt for prompt in self.computed[:batch] if len(prompt) >= 4 * SHORT]
            if len(long) == batch:
                await self._decodes("long", number, long)
            now_s = self._clock.now_s()
            if now_s - started_s + 1.5 * (now_s - before_s) > allowed_s:
                break

    def _batches(self) -> list[int]:
        room = self._facts.num_blocks // 2 or self._plan.max_batch
        per_request = -(-(SHORT + self._plan.num_decode_tokens) // self._facts.block_size)
        batches = [1]
        while batches[-1] * 2 <= min(self._plan.max_batch, room // per_request):
            batches.append(batches[-1] * 2)
        return batches

    async def _decodes(self, name: str, number: int, prompts: Sequence[tuple[int, ...]]) -> bool:
        """Measure the steps in which all of them decode; False when there were too few: the engine does not
        run so many at once."""
        timelines = await self._target.run([Ask(prompt, self._plan.num_decode_tokens) for prompt in prompts])
        window = decode_window(timelines)
        if window is None:
            return False
        contexts, num_steps, seconds = window
        work = decode_work(contexts, num_steps)
        case = f"{len(prompts)} {name}"
        self.samples.append(Sample(Kind.DECODE, case, number, _per_step(work), seconds / num_steps))
        return True

    async def _mixed_cases(self, number: int) -> None:
        for batch, length in _MIXED:
            if length + batch > self._budget or length > self.lengths[-1]:
                continue
            decodes = [Ask(self._prompts.fresh(SHORT), self._plan.num_decode_tokens) for _ in range(batch)]
            step_s = self._step_s(batch)
            late = Ask(self._prompts.fresh(length), 1, delay_s=step_s * self._plan.num_decode_tokens / 2)
            *timelines, added = await self._target.run([*decodes, late])
            gap = mixed_gap(timelines, added)
            if gap is not None:
                contexts, seconds = gap
                case, work = f"{length} beside {batch}", mixed_work(contexts, length)
                self.samples.append(Sample(Kind.MIXED, case, number, work, seconds))

    def _step_s(self, batch: int) -> float:
        """Seconds of a step of about so many decodes, as measured."""
        of_kind = [sample for sample in self.samples if sample.kind is Kind.DECODE]
        near = min(of_kind, key=lambda sample: abs(sample.work.steps[0][0] - batch), default=None)
        return near.seconds if near is not None else 0.0


def _per_step(work: Work) -> Work:
    """The mean step of a run of decodes: all runs count alike in the fit, however long."""
    ((tokens, num_steps),) = work.steps
    return Work(((tokens, 1),), num_read=round(work.num_read / num_steps))


def decode_window(timelines: Sequence[Timeline]) -> tuple[list[int], int, float] | None:
    """The time in which all of them decode: contexts in the first of its steps (the new token included), the
    number of steps, seconds. None when it is too short."""
    start_s = max(timeline.token_s[0] for timeline in timelines)
    end_s = min(timeline.token_s[-1] for timeline in timelines)
    last = max(timelines, key=lambda timeline: timeline.token_s[0])
    inside = [at_s for at_s in last.token_s if start_s < at_s <= end_s]
    if len(inside) < _LEAST_WINDOW:
        return None
    contexts = [
        timeline.num_prompt_tokens + sum(at_s <= start_s for at_s in timeline.token_s)
        for timeline in timelines
    ]
    return contexts, len(inside), inside[-1] - start_s


def mixed_gap(decodes: Sequence[Timeline], added: Timeline) -> tuple[list[int], float] | None:
    """The step in which the `added` prompt was computed beside all `decodes`: their contexts in it, and its
    seconds by the middle one of them. None when they were not all decoding then, or when tokens of two steps
    were read together."""
    contexts, gaps = [], []
    for timeline in decodes:
        token_s = timeline.token_s
        index = min(range(len(token_s)), key=lambda i: abs(token_s[i] - added.token_s[0]))
        if not 0 < index < len(token_s) - 1 or not token_s[index - 1] < token_s[index] < token_s[index + 1]:
            return None
        contexts.append(timeline.num_prompt_tokens + index)
        gaps.append(token_s[index] - token_s[index - 1])
    return contexts, statistics.median(gaps)
