"""What a request would cost on an engine, in seconds: `TTFT(w) = wait(w) + load(w) + prefill(w)`, and what
its computing costs others, whose answers it delays, and those who come after it.

- wait: `a Q + b P` for the prompts that `w` was sent before and has not computed, Q their tokens and P the
  sum of their own L^2 - m^2, less the seconds since it began with the first of them; and `c D` for the D
  answers that it streams, whose steps the prompt shares. Where its KV cache is too full, until there is room
  (`anbar.route.room`), if that is longer: prompts are computed while others end.
- load: latency and seconds per token of the part that lies in host RAM or in the shared store.
- prefill: `overhead + a (L - m) + b (L^2 - m^2)` for the tokens m..L that come from no tier.

A tier is used only when loading beats computing: of «device alone», «device and host», «all tiers» the
cheapest is predicted. Where that leaves out a tier, `Prediction.match` is shorter than what the index
matched. A tier without a known cost is taken to need a fraction of the time of computing
(`LOAD_RATIO`): less than computing, so it is always used, as an engine on its own does, and more than
nothing, so the engine that has a prefix on its device comes before one that must load it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from anbar.core.events import Tier
from anbar.core.fleet import NO_MATCH, EngineView, Prediction, PrefixMatch
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.adapters import adapter_wait_s
from anbar.route.room import expected_in_flight, room_wait_s

LATER_PER_WAITING = 2.0
"""Prompts to come that a second of computing delays by a second, for each one that waits now, on the average
of the fleet: as many come while those wait (Little's law), and again as many until the queue is empty, with
engines that compute prompts half of their time."""

LOAD_RATIO: Mapping[Tier, float] = {Tier.HOST: 0.05, Tier.SHARED: 0.1}
"""Time to load a token over the time to compute it, until somebody measured it. Published for host RAM on an
H100: 2 to 22 times sooner than computing (vLLM's blog of 2026-01-08 on the offloading connector); a store is
slower."""


class FleetMean(msgspec.Struct, frozen=True):
    """Requests an engine has on the average: in flight, and of those without a first token."""

    in_flight: float
    waiting: float


def predict(
    query: RouteQuery, engine: EngineView, match: PrefixMatch, mean: FleetMean | None = None
) -> Prediction:
    """The seconds `query` would take to its first token on `engine`, which holds `match` of its prefix, and
    what that costs others. Without a `mean` the engine stays as busy as it is, and nobody comes later."""
    mean = mean or FleetMean(engine.num_in_flight, 0.0)
    wait_s = max(engine.wait_s, room_wait_s(engine, query.num_tokens - match.device))
    if query.lora is not None:
        wait_s += adapter_wait_s(query, engine)
    if match.shared == match.device:  # mostly: nothing of it has to be loaded, and there is nothing to weigh
        return _with(query, engine, wait_s, match, mean)
    options = [_with(query, engine, wait_s, used, mean) for used in _uses(match)]
    return min(options, key=lambda option: option.ttft_s)


def predict_all(
    query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
) -> dict[EngineId, Prediction]:
    """`predict` for each engine; one without an entry in `matches` holds nothing."""
    fleet = _fleet_mean(engines)
    return {engine.id: predict(query, engine, matches.get(engine.id, NO_MATCH), fleet) for engine in engines}


class LatePredictions(Mapping[EngineId, Prediction]):
    """As `predict_all`, each made when it is asked for. Where the choice needs none, all but one are only
    wanted by who has it explained."""

    __slots__ = ("_engines", "_made", "_matches", "_query")

    def __init__(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> None:
        # It is kept for longer than the prompt is to be.
        self._query = replace(query, token_ids=()) if query.token_ids else query
        self._engines = {engine.id: engine for engine in engines}
        self._matches = matches
        self._made: dict[EngineId, Prediction] = {}

    def __getitem__(self, engine: EngineId) -> Prediction:
        found = self._made.get(engine)
        if found is None:
            match = self._matches.get(engine, NO_MATCH)
            fleet = _fleet_mean(self._engines.values())
            found = self._made[engine] = predict(self._query, self._engines[engine], match, fleet)
        return found

    def __iter__(self) -> Iterator[EngineId]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)


def _fleet_mean(engines: Collection[EngineView]) -> FleetMean:
    num = max(1, len(engines))
    num_in_flight = sum([engine.num_in_flight for engine in engines])
    num_waiting = num_in_flight - sum([engine.num_decoding for engine in engines])
    return FleetMean(num_in_flight / num, num_waiting / num)


def score_s(prediction: Prediction) -> float:
    """What `predicted_ttft` makes least."""
    return prediction.ttft_s + prediction.imposed_s + prediction.later_s


def host_load_s(engine: EngineView, prediction: Prediction) -> float:
    """The part of `prediction.load_s` that is spent on the host tier; the rest is the shared store's."""
    return _load_s(engine, Tier.HOST, prediction.match.host - prediction.match.device)


def _uses(match: PrefixMatch) -> list[PrefixMatch]:
    """The ways to use a match, the longest first: on a tie more is reused."""
    return [
        match,
        PrefixMatch(match.device, match.host, match.host, match.unproven),
        PrefixMatch(match.device, match.device, match.device, match.unproven),
    ]


def _with(
    query: RouteQuery, engine: EngineView, wait_s: float, used: PrefixMatch, mean: FleetMean
) -> Prediction:
    """What the prefill takes from others' answers: vLLM computes a prompt chunk in the same steps as the
    running decodes, so while the prefill lasts each of them waits about as long as it takes; the overhead is
    no part of that, since the decodes' own steps have it too. Loads run beside the steps and delay nobody.
    Those who run then are not those who run now: the prompts before it are being answered by then, answers
    that run now may have ended, and others have come."""
    load_s = 0.0
    if used.shared > used.device:
        load_s = _load_s(engine, Tier.HOST, used.host - used.device)
        load_s += _load_s(engine, Tier.SHARED, used.shared - used.host)
    # A prompt that is held in full still needs its last token computed to have something to sample from.
    num_cached = max(0, min(used.total, query.num_tokens - 1))
    prefill_s = engine.prefill.seconds(query.num_tokens, num_cached)
    blocking_s = max(0.0, prefill_s - engine.prefill.overhead_s)
    later_s = LATER_PER_WAITING * mean.waiting * blocking_s
    imposed_s = expected_in_flight(engine, wait_s, mean.in_flight) * blocking_s
    return Prediction(used, wait_s, load_s, prefill_s, later_s, imposed_s)


def _load_s(engine: EngineView, tier: Tier, num_tokens: int) -> float:
    if not num_tokens:
        return 0.0
    cost = engine.loads.get(tier)
    if cost is None:
        return LOAD_RATIO[tier] * engine.prefill.a_s_per_token * num_tokens
    return cost.seconds(num_tokens)
