"""The host-memory tier, where the engine has one: prompts are computed, displaced from the device, and asked
again. vLLM's counters say what was loaded, how many bytes that was and how long the copies took."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from anbar.apps.calibrate.campaign import Progress
from anbar.apps.calibrate.fit import Compute
from anbar.apps.calibrate.metrics_page import Counters
from anbar.apps.calibrate.prompts import Prompts
from anbar.apps.calibrate.target import Ask, EngineFacts, Target, Timeline
from anbar.apps.calibrate.work import Kind, Sample, prompt_work
from anbar.core.cost import FREE_COPY, CopyCost
from anbar.core.cost_file import Residual

_LEAST_SHARE = 0.8
"""Of a prompt's tokens must come from host memory, or its time says nothing of loading."""
_FILL_BATCH = 8
"""Prompts that are computed at once to displace others."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """What the tier costs. Bytes per token as the engine copied them; 0: nothing was loaded."""

    load: CopyCost = FREE_COPY
    store: CopyCost = FREE_COPY
    kv_bytes_per_token: int = 0
    residuals: tuple[Residual, ...] = ()
    note: str = ""
    """Why there is nothing, fit for the report; "" when there is."""


class HostMeasurement:
    """One look at an engine's host tier."""

    def __init__(
        self, target: Target, facts: EngineFacts, prompts: Prompts, compute: Compute, budget: int
    ) -> None:
        self._target = target
        self._facts = facts
        self._prompts = prompts
        self._compute = compute
        self._budget = budget

    async def run(self, lengths: Sequence[int], allowed_s: float, progress: Progress) -> HostCost:
        """Measure with prompts of `lengths`; displacing them may take `allowed_s`."""
        progress("host memory", 0.0)
        before = await self._target.counters()
        prompts = [self._prompts.fresh(length) for length in lengths]
        for prompt in prompts:
            await self._target.run([Ask(prompt, 2)])  # stores are deferred to the next step
        if not await self._target.clear_device() and not await self._displace(allowed_s):
            tokens = self._facts.num_blocks * self._facts.block_size
            size = f"{tokens:,} tokens" if tokens else "an unknown number of tokens"
            note = f"the device holds {size}, which take longer to displace than there is time"
            return HostCost(note=note)
        progress("host memory", 0.5)
        found: list[tuple[int, Timeline]] = []
        start = middle = await self._target.counters()
        for prompt in prompts:
            (timeline,) = await self._target.run([Ask(prompt, 1)])
            end = await self._target.counters()
            loaded = end.external_tokens - middle.external_tokens
            middle = end
            if loaded >= _LEAST_SHARE * len(prompt):
                found.append((loaded, timeline))
        if middle.external_tokens == start.external_tokens:
            return HostCost(note="what left the device did not come back from host memory")
        return self._cost(found, before, start, middle)

    async def _displace(self, allowed_s: float) -> bool:
        """Fill the device with other prompts; False when that would take too long."""
        tokens = self._facts.num_blocks * self._facts.block_size
        length = min(self._budget, self._facts.max_model_len - 2, max(1, tokens // _FILL_BATCH))
        each_s = self._compute.seconds(prompt_work(length, 0, self._budget))
        count = -(-tokens // length) + 1
        if not tokens or count * each_s > allowed_s:
            return False
        for sent in range(0, count, _FILL_BATCH):
            batch = min(_FILL_BATCH, count - sent)  # not more: they displace from host memory too
            await self._target.run([Ask(self._prompts.fresh(length), 1) for _ in range(batch)])
        return True

    def _cost(
        self, found: Sequence[tuple[int, Timeline]], before: Counters, start: Counters, end: Counters
    ) -> HostCost:
        num_tokens = end.external_tokens - start.external_tokens
        num_bytes = end.load_bytes - start.load_bytes
        s_per_byte = (end.load_s - start.load_s) / num_bytes if num_bytes else 0.0
        latency_s, residuals = self._latency(found, s_per_byte * num_bytes / num_tokens)
        stored = end.store_bytes - before.store_bytes
        return HostCost(
            load=CopyCost(latency_s, 0.0, s_per_byte),
            store=CopyCost(0.0, 0.0, (end.store_s - before.store_s) / stored if stored else 0.0),
            kv_bytes_per_token=round(num_bytes / num_tokens),
            residuals=residuals,
        )

    def _latency(
        self, found: Sequence[tuple[int, Timeline]], s_per_token: float
    ) -> tuple[float, tuple[Residual, ...]]:
        """What a load takes beside its tokens, 0.0 when no prompt was loaded as a whole; and how far off that
        is."""
        if not found:
            return 0.0, ()
        samples = [self._sample(timeline) for _, timeline in found]
        rest_s = [
            sample.seconds - self._compute.seconds(sample.work) - loaded * s_per_token
            for sample, (loaded, _) in zip(samples, found, strict=True)
        ]
        latency_s = max(0.0, statistics.median(rest_s))
        errors = [
            abs(rest - latency_s) / sample.seconds for rest, sample in zip(rest_s, samples, strict=True)
        ]
        residual = Residual(str(Kind.LOAD), len(errors), statistics.median(errors), max(errors), 0.0)
        return latency_s, (residual,)

    def _sample(self, timeline: Timeline) -> Sample:
        work = prompt_work(timeline.num_prompt_tokens, timeline.num_cached, self._budget)
        return Sample(Kind.LOAD, f"{timeline.num_prompt_tokens} tokens", 0, work, timeline.ttft_s)
