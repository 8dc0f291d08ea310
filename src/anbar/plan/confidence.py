"""How sure a verdict is: what chance may have made of the log, and what nobody said.

A log is a sample of the traffic. Two questions are asked of it. Is it long enough for any share at all? One
that is found in n requests is known within 1 / sqrt(n), in 19 of 20 samples and at worst (half of the normal
95 % interval, 1.96 x sqrt(p (1 - p) / n), at p = 1/2). And would another sample of the same traffic give the
same verdict? Requests near each other are alike, so not requests but parts of the log are drawn again, with
replacement (block bootstrap; Kuensch, Annals of Statistics 17, 1989), and the rule is applied to each draw.
Where nothing was found in n requests, up to 3 / n of them might have been (the rule of three).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anbar.plan.answer import in_words
from anbar.plan.facts import Facts, pays
from anbar.plan.options import Option
from anbar.plan.reasons import OVERLOADED, Choice, Kind, Reason

Numbers = npt.NDArray[np.float64]

_UNKNOWN = 0.10
"""A share that is not known better than within ten points is not known: fewer than 100 requests."""
_VAGUE = 0.071
"""Fewer than 200."""
_SHORT_S = 600.0
_PARTS = 20
_DRAWS = 1000
_SEED = 1
_MOST_TURN = 0.05
"""Of the draws: from here on another verdict is a doubt,"""
_OFTEN_TURN = 0.25
"""and from here on nobody knows."""
_SILENT = 0.01
"""Of requests that tell nothing of their blocks: a doubt from here on,"""
_MOST_SILENT = 0.2
"""and no log of reuse from here on."""
STRUCTURAL = frozenset(
    {Kind.BELOW_CHUNK, Kind.TOO_LONG, Kind.OVERLOAD, Kind.POOL_TOO_SMALL, Kind.HOST_BELOW_POOL}
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the verdict may be wrong. `weight` 2: this alone makes confidence low."""

    text: str
    weight: int = 1


def level(doubts: tuple[Doubt, ...]) -> str:
    """high without a doubt, medium with one, low with more or with one that weighs as much."""
    return ("high", "medium", "low")[min(2, sum(doubt.weight for doubt in doubts))]


def log_doubts(facts: Facts, choice: Choice, main: Reason, *, are_times_real: bool) -> Iterator[Doubt]:
    """What of the log itself is to be doubted. `are_times_real`: its times are those of this load."""
    requests, span_s = facts.options.workload.requests, facts.options.workload.span_s
    num = len(requests)
    within = 1 / math.sqrt(num)
    if within > _VAGUE:
        of = f"the log has only {num:,} request{'s' * (num > 1)}"
        text = f"{of}: a share of so few is known within {in_words(100 * within, 'count')} points at best"
        yield Doubt(text, 2 if within > _UNKNOWN else 1)
    elif 0.0 < span_s < _SHORT_S and are_times_real:
        yield Doubt(f"the log is only {span_s:.0f} s long: what comes again later is not in it")
    size = facts.options.workload.block_size
    silent = sum(1 for asked in requests if not asked.blocks and asked.num_prompt > size)
    if silent > _SILENT * num:
        text = (
            f"{silent:,} of {num:,} requests do not tell what they have in common with others (no hash_ids)"
        )
        yield Doubt(text, 2 if silent > _MOST_SILENT * num else 1)
    yield from _by_chance(facts, choice, main)


def _by_chance(facts: Facts, choice: Choice, main: Reason) -> Iterator[Doubt]:
    num = len(facts.options.prompt)
    if main.kind is Kind.OVERLOAD:
        yield from _rate_by_chance(facts, num)
    if main.kind in STRUCTURAL or main.kind is Kind.PREEMPTIONS:
        return
    if facts.best == 0.0:
        hits, might = facts.throughput.hits_needed(), min(1.0, 3 / num)
        if might > hits:
            yield Doubt(
                f"nothing came again in {num:,} requests, and it may be {in_words(might, 'share')} of them "
                f"(rule of three, 3 / {num:,}); {in_words(hits, 'share')} would pay for storing"
            )
        return
    turns = share_of_other_verdicts(facts, choice)
    if turns >= _MOST_TURN:
        yield Doubt(
            f"{in_words(turns, 'share')} of samples drawn again from parts of this log give another verdict",
            2 if turns >= _OFTEN_TURN else 1,
        )


def _rate_by_chance(facts: Facts, num: int) -> Iterator[Doubt]:
    """Arrivals at random: their rate is known within 1.96 / sqrt(n) of itself."""
    used = facts.options.utilisation(facts.neither) or 0.0
    least = used * (1 - 1.96 / math.sqrt(num))
    if least < OVERLOADED:
        yield Doubt(
            f"{num:,} arrivals tell a rate within {in_words(1.96 / math.sqrt(num), 'share')}: engines may be "
            f"asked for {in_words(max(0.0, least), 'share')} as well"
        )


def share_of_other_verdicts(facts: Facts, choice: Choice) -> float:
    """Of draws of twenty parts of the log, with replacement, in which the rule gives another verdict. Equal
    logs give equal shares."""
    options = _options(facts)
    num = len(facts.options.prompt)
    parts = np.array_split(np.arange(num), min(_PARTS, num))
    draws = np.random.default_rng(_SEED).integers(len(parts), size=(_DRAWS, len(parts)))
    counts = np.stack([(draws == part).sum(axis=1) for part in range(len(parts))], axis=1).astype(float)

    def drawn(each: Numbers) -> Numbers:
        found: Numbers = counts @ np.array([each[part].sum() for part in parts])
        return found

    sizes = drawn(np.ones(num))
    engine = {name: drawn(_engine_s(facts, option)) for name, option in options.items()}
    first = {name: drawn(option.first_token_s) / sizes for name, option in options.items()}
    found = [_chosen(engine, first, place) for place in range(_DRAWS)]
    return sum(other is not choice for other in found) / _DRAWS


def _options(facts: Facts) -> dict[Choice, Option]:
    found = {Choice.NEITHER: facts.neither}
    if facts.stack.host_tokens:
        found[Choice.NATIVE] = facts.native
    if facts.stack.store is not None:
        found[Choice.SHARED] = facts.shared
    return found


def _engine_s(facts: Facts, option: Option) -> Numbers:
    """Seconds of the engines for each request; answers by their length, storing by what is without it."""
    options = facts.options
    answers = options.answer / max(1, int(options.answer.sum())) * options.decode_s
    without = options.computed(facts.neither.found) + answers
    own = options.computed(option.found) + option.load_s + answers
    storing = option.engine_s - float(own.sum())
    seconds: Numbers = own + storing * without / without.sum()
    return seconds


def _chosen(engine: dict[Choice, Numbers], first: dict[Choice, Numbers], place: int) -> Choice:
    """By the rule of `reasons.decide`, with one draw's sums."""
    base = Choice.NEITHER
    for choice in (Choice.NATIVE, Choice.SHARED):
        if choice in engine:
            gain = engine[base][place] / engine[choice][place] - 1.0
            if pays(gain, first[base][place], first[choice][place]):
                base = choice
    return base
