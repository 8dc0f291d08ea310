"""A whole calibration: look, measure, fit, and say how good the fit is."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from anbar import __version__
from anbar.apps.calibrate.campaign import Campaign, Plan, Progress
from anbar.apps.calibrate.fit import Compute, fit, residuals, undisturbed
from anbar.apps.calibrate.given import Given, dtype_of, kv_bytes_of
from anbar.apps.calibrate.host import HostCost, HostMeasurement
from anbar.apps.calibrate.metrics_page import Counters
from anbar.apps.calibrate.prompts import Prompts
from anbar.apps.calibrate.target import Counted, EngineFacts, Target
from anbar.apps.calibrate.work import Sample
from anbar.core.clock import Clock
from anbar.core.cost import EngineCost
from anbar.core.cost_file import CostFile, EngineType, Measured
from anbar.core.errors import MeasureError

_TOKENIZE_WORDS = (50, 1550)
_TOKENIZE_REPEATS = 7
_HOST_SHARE = 0.25
"""Of the plan's time may be spent on displacing what the device caches."""
_HOST_PROMPTS = 4
"""As many lengths, the longest: by one length alone latency could not be told from the fit's error at it."""
_RESTLESS = 0.15
"""Share of disturbed measurements above which the rest cannot be trusted either."""
COPY_DELAY_CPU = 1.0
"""Anbar's copies on a CPU are made by the thread that computes."""
COPY_DELAY_GPU = 0.2
"""An H100's copy engines: storing 8B's KV of 43,800 tokens/s (5.7 GB/s of 46) cost 2.5 % of the throughput
(blog.vllm.ai, 2026-01-08, figures 2 and 3). Over the API this cannot be told from noise."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One fitted number, and the range of it when each round in turn is left out."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result: what goes into the file, what goes on the screen."""

    content: CostFile
    coefficients: tuple[Coefficient, ...]
    notes: tuple[str, ...]
    samples: tuple[Sample, ...]
    """All that was measured, disturbed or not."""


async def calibrate(
    target: Target, facts: EngineFacts, given: Given, plan: Plan, session: "Session"
) -> Calibration:
    """Measure `target`, whose device is `given`. Raises MeasureError when it is busy or does not answer as it
    should."""
    before = await idle_counters(target, facts)
    if not facts.has_offload:
        kv_bytes_of(facts, given, 0)  # better refused now than after minutes
    started_s = session.clock.now_s()
    counted, budget = Counted(target), given.max_num_batched_tokens
    campaign = Campaign(counted, facts, session.prompts, plan, budget, session.clock)
    await campaign.run(session.progress)
    front_s_per_token = await tokenize_cost(counted, session.prompts)
    samples = undisturbed(campaign.samples)
    compute = fit(samples)
    host = HostCost()
    if facts.has_offload:
        measurement = HostMeasurement(counted, facts, session.prompts, compute, budget)
        host = await measurement.run(
            campaign.lengths[-_HOST_PROMPTS:], plan.seconds * _HOST_SHARE, session.progress
        )
    after = await counted.counters()
    measured = Measured(
        at=session.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        by=f"anbar calibrate {__version__}",
        seconds=round(session.clock.now_s() - started_s, 1),
        residuals=(*residuals(samples, compute, campaign.samples), *host.residuals),
    )
    engine = _engine(facts, given, host)
    notes = (
        host.note,
        _unrest(len(campaign.samples) - len(samples), len(campaign.samples)),
        _company(after.prompt_tokens - before.prompt_tokens - counted.num_prompt_tokens),
    )
    return Calibration(
        CostFile(engine, measured, _cost(engine, compute, host, front_s_per_token)),
        tuple(_coefficients(compute, samples)),
        tuple(note for note in notes if note),
        tuple(campaign.samples),
    )


def _engine(facts: EngineFacts, given: Given, host: HostCost) -> EngineType:
    return EngineType(
        model=facts.model,
        device=given.device,
        dtype=dtype_of(facts, given),
        vllm=facts.vllm,
        block_size=facts.block_size,
        kv_bytes_per_token=kv_bytes_of(facts, given, host.kv_bytes_per_token),
        max_num_batched_tokens=given.max_num_batched_tokens,
    )


def _cost(engine: EngineType, compute: Compute, host: HostCost, front_s_per_token: float) -> EngineCost:
    return EngineCost(
        tokens=compute.tokens,
        prefill_s_per_token2=compute.prefill_s_per_token2,
        decode_s_per_kv_byte=compute.decode_s_per_token / engine.kv_bytes_per_token,
        load=host.load,
        store=host.store,
        copy_delay=COPY_DELAY_CPU if engine.device == "cpu" else COPY_DELAY_GPU,
        front_s=compute.front_s,
        front_s_per_token=front_s_per_token,
    )


@dataclass(frozen=True, slots=True)
class Session:
    """What a calibration needs of its surroundings."""

    prompts: Prompts
    clock: Clock
    progress: Progress
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def _unrest(num_disturbed: int, num_samples: int) -> str:
    """What to say of measurements that something else on the machine has disturbed; "" when none was."""
    if not num_disturbed:
        return ""
    text = f"{num_disturbed} of {num_samples} measurements took far longer than their like and were left out"
    if num_disturbed <= _RESTLESS * num_samples:
        return text
    return f"{text}: the machine was not quiet, the figures are worth little; calibrate again when it is"


def _company(num_tokens: int) -> str:
    """What to say of prompt tokens that somebody else sent; "" when there were none."""
    if num_tokens <= 0:
        return ""
    return f"somebody else sent {num_tokens:,} prompt tokens meanwhile, which has disturbed the measurements"


async def idle_counters(target: Target, facts: EngineFacts) -> Counters:
    """Its totals. Raises MeasureError when the engine serves somebody."""
    counters = await target.counters()
    if counters.num_running or counters.num_waiting:
        raise MeasureError(
            f"{facts.url} is busy: {counters.num_running} requests running, {counters.num_waiting} waiting; "
            "calibrate it while nobody uses it"
        )
    return counters


async def tokenize_cost(target: Target, prompts: Prompts) -> float:
    """Seconds to tokenize one more token of a text, as the engine's front end does."""
    times: list[list[float]] = []
    counts: list[int] = []
    for words in _TOKENIZE_WORDS:
        found = [await target.tokenize_s(prompts.text(words)) for _ in range(_TOKENIZE_REPEATS)]
        times.append([seconds for seconds, _ in found])
        counts.append(round(statistics.median(count for _, count in found)))
    slower_s = statistics.median(times[1]) - statistics.median(times[0])
    return max(0.0, slower_s / max(1, counts[1] - counts[0]))


def _coefficients(compute: Compute, samples: Sequence[Sample]) -> list[Coefficient]:
    rounds = sorted({sample.round for sample in samples})
    others = [[sample for sample in samples if sample.round != number] for number in rounds]
    each = [fit(rest) for rest in others if rest]
    ranges = zip(*(_values(found, compute) for found in [compute, *each]), strict=True)
    return [
        Coefficient(name, value, min(values)[1], max(values)[1])
        for (name, value), values in zip(_values(compute, compute), ranges, strict=True)
    ]


def _values(found: Compute, shown: Compute) -> list[tuple[str, float]]:
    """The coefficients of `found` by name, its curve at the points of the one that is `shown`."""
    return [
        *((f"step of {tokens} tokens, s", found.tokens.seconds(tokens)) for tokens, _ in shown.tokens.points),
        ("further token, s", found.tokens.s_per_token),
        ("attention of prompts, s/token²", found.prefill_s_per_token2),
        ("attention of decodes, s/token", found.decode_s_per_token),
        ("front end, s/request", found.front_s),
    ]
