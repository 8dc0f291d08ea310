"""All that is learned of one engine's speed: what prompts cost to compute, and to load from each tier.

A finished request teaches what its tokens went through. If they were computed, all but a few, the time is the
prefill's, less the predicted load. If most were loaded, what the predicted wait and prefill leave over is
the load's: seconds per token and tier, as a share of the time to compute a token, by least squares with
forgetting, between 0 (free) and 1 (no better than computing). How long answers run is a faded mean.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from anbar.core.cost import NO_WORK, LoadCost, PrefillCost, PrefillWork
from anbar.core.events import Tier
from anbar.core.prefill_learner import HALF_LIFE, PrefillGroup, PrefillLearner, PrefillSample
from anbar.route.predict import LOAD_RATIO

EAGER = 64
"""Requests of an engine that all teach."""

EVERY_S = 0.01
"""After these at most one in so many seconds: learning costs as much as a tenth of a request's way, and of
hundreds a second one more says nothing."""

NO_LOADS: Mapping[Tier, LoadCost] = MappingProxyType({})


class Finished(msgspec.Struct, frozen=True):
    """What a finished request says of its engine."""

    own: PrefillWork
    """What was computed of its prompt."""
    seconds: float
    """From sending it to the first token, and what was done of `queued` by then."""
    queued: PrefillWork = NO_WORK
    """What was to compute before."""
    loaded: Mapping[Tier, int] = msgspec.field(default_factory=dict)
    """Tokens that came from each tier below the device."""
    num_decoding: int = 0
    """Answers that ran when it was sent."""
    answer_s: float = math.nan
    """From the first token to the end; not a number where the first token is not seen."""
    is_clear: bool = True
    """Whether it is known what it waited for: nothing that was queued before was overtaken, or loaded."""


class _Ratio:
    """Seconds to load over seconds to compute, learned from one tier's loads."""

    __slots__ = ("num_samples", "value", "xx", "xy")

    FADE = 0.5 ** (1 / HALF_LIFE)

    RIDGE = 1.0
    """How strongly it is drawn to where it began: (relative error of a sample, a fifth)^2 / (its own)^2."""

    def __init__(self, start: float) -> None:
        self.value = start
        self.xx = self.xy = 0.0
        self.num_samples = 0

    def add(self, x: float, y: float, start: float) -> None:
        """`x`: what computing the tokens would take, `y`: what was left for loading them; both over the
        request's predicted seconds."""
        self.xx = self.xx * self.FADE + x * x
        self.xy = self.xy * self.FADE + x * y
        self.num_samples += 1
        self.value = min(max((self.xy + self.RIDGE * start) / (self.xx + self.RIDGE), 0.0), 1.0)


class _Mean:
    """Faded mean of seconds."""

    __slots__ = ("num_samples", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.num_samples = 0

    def add(self, seconds: float) -> None:
        self.num_samples += 1
        self.value += (seconds - self.value) / min(self.num_samples, 2 * HALF_LIFE)


class CostGroup:
    """Engines that are expected to be alike: what one shows of itself is expected of the others."""

    def __init__(self, prior: PrefillCost, loads: Mapping[Tier, LoadCost] = NO_LOADS) -> None:
        """`loads`: what is known of tiers; the others are taken to need `LOAD_RATIO` of computing."""
        self.prefill = PrefillGroup(prior)
        self.latency_s = {tier: loads[tier].latency_s if tier in loads else 0.0 for tier in LOAD_RATIO}
        self._start = {
            tier: loads[tier].s_per_token / prior.a_s_per_token if tier in loads else ratio
            for tier, ratio in LOAD_RATIO.items()
        }
        self.ratios = {tier: _Ratio(start) for tier, start in self._start.items()}
        self.answers = _Mean()
        self.num_loads = 0
        """Loads that any of the engines has taught."""

    def join(self) -> "EngineCosts":
        """The costs of one more engine."""
        return EngineCosts(self)

    def observe(self, tier: Tier, x: float, y: float) -> None:
        """A load by one of the engines."""
        self.ratios[tier].add(x, y, self._start[tier])
        self.num_loads += 1


class EngineCosts:
    """One engine's. Made by `CostGroup.join`."""

    MOST_LEFT = 4.0
    """Of a request's predicted seconds: what may count as left for a load, in either direction."""

    MOST_LOADED = 0.125
    """Tokens loaded for each one computed, of a request that teaches the prefill: a load may take longer than
    is predicted, and that must not be taken for computing."""

    def __init__(self, group: CostGroup) -> None:
        self._group = group
        self.learner: PrefillLearner = group.prefill.join()
        self._own = {tier: _Ratio(0.0) for tier in LOAD_RATIO}
        self._answers = _Mean()
        self._taught_s = -math.inf
        self._loads: Mapping[Tier, LoadCost] = NO_LOADS
        self._loads_of: tuple[PrefillCost, int] | None = None
        """What `_loads` was made from: a look, which every request takes at every engine, costs nothing."""

    @property
    def prefill(self) -> PrefillCost:
        """The present estimate."""
        return self.learner.cost

    @property
    def doubt(self) -> float:
        """By which share the prefill's estimate may be off: a standard error."""
        return self.learner.doubt

    @property
    def answer_s(self) -> float:
        """How long answers run after their first token, on the average; 0.0 until one has ended."""
        own = self._answers
        return own.value if own.num_samples else self._group.answers.value

    @property
    def loads(self) -> Mapping[Tier, LoadCost]:
        """The present estimate, by tier."""
        prefill, group = self.learner.cost, self._group
        made_of = self._loads_of
        if made_of is None or made_of[0] is not prefill or made_of[1] != group.num_loads:
            self._loads_of = prefill, group.num_loads
            self._loads = MappingProxyType(
                {
                    tier: LoadCost(self._ratio(tier) * prefill.a_s_per_token, group.latency_s[tier])
                    for tier in group.ratios
                }
            )
        return self._loads

    def forget(self) -> None:
        """Another engine has taken this one's place: it is expected to be like the others again."""
        self.learner.forget()
        self._own = {tier: _Ratio(0.0) for tier in LOAD_RATIO}
        self._answers = _Mean()
        self._loads_of = None

    def num_loads(self, tier: Tier) -> int:
        """Requests that taught what loading from `tier` takes."""
        return self._own[tier].num_samples

    def is_due(self, now_s: float) -> bool:
        """Whether a request that has finished now is to be learned from."""
        if self.learner.num_samples >= EAGER and now_s - self._taught_s < EVERY_S:
            return False
        self._taught_s = now_s
        return True

    def observe(self, finished: Finished) -> None:
        """Learn from one request. What no clock can have measured is ignored."""
        if math.isfinite(finished.answer_s) and finished.answer_s >= 0:
            self._answers.add(finished.answer_s)
            self._group.answers.add(finished.answer_s)
        loads, num_loaded = self.loads, sum(finished.loaded.values())
        load_s = sum(loads[tier].seconds(count) for tier, count in finished.loaded.items())
        if num_loaded <= self.MOST_LOADED * finished.own.tokens:
            if not finished.is_clear:
                return
            sample = PrefillSample(
                finished.own, finished.seconds - load_s, finished.queued, finished.num_decoding
            )
            self.learner.observe(sample)
        elif num_loaded > finished.own.tokens and math.isfinite(finished.seconds) and finished.seconds > 0:
            self._observe_loads(finished, loads, load_s)

    def _observe_loads(self, finished: Finished, loads: Mapping[Tier, LoadCost], load_s: float) -> None:
        prefill = self.prefill
        other_s = prefill.overhead_s + prefill.work_seconds(finished.own)
        other_s += prefill.work_seconds(finished.queued) + prefill.s_per_answer * finished.num_decoding
        expected_s = other_s + load_s
        most_s = self.MOST_LEFT * expected_s
        left_s = min(max(finished.seconds - other_s, -most_s), most_s)
        for tier, count in finished.loaded.items():
            if count <= 0:
                continue
            # What the other tiers are predicted to have taken is not this one's.
            own_s = left_s - (load_s - loads[tier].s_per_token * count)
            x, y = prefill.a_s_per_token * count / expected_s, own_s / expected_s
            self._group.observe(tier, x, y)
            self._own[tier].add(x, y, self._group.ratios[tier].value)

    def _ratio(self, tier: Tier) -> float:
        own = self._own[tier]
        return own.value if own.num_samples else self._group.ratios[tier].value
