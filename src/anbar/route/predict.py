"""What a request would cost on an engine, in seconds: `TTFT(w) = wait(w) + load(w) + prefill(w)`.

- wait: `a Q + b P` for the prompts that `w` was sent before and has not computed, Q their tokens and P the
  sum of their own L^2 - m^2, less the seconds since it began with the first of them; and `c D` for the D
  answers that it streams, whose steps the prompt shares.
- load: latency and seconds per token of the part that lies in host RAM or in the shared store.
- prefill: `overhead + a (L - m) + b (L^2 - m^2)` for the tokens m..L that come from no tier.

A tier is used only when loading beats computing: of «device alone», «device and host», «all tiers» the
cheapest is predicted. Where that leaves out a tier, `Prediction.match` is shorter than what the index
matched. A tier without a known cost is taken to need a fraction of the time of computing
(`LOAD_RATIO`): less than computing, so it is always used, as an engine on its own does, and more than
nothing, so the engine that has a prefix on its device comes before one that must load it.
"""

from collections.abc import Mapping, Sequence

from anbar.core.events import Tier
from anbar.core.fleet import NO_MATCH, EngineView, Prediction, PrefixMatch
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.adapters import adapter_wait_s

OTHERS_WEIGHT = 0.3
"""A second by which the tokens of somebody's answer come late, over a second without a first token. At 1 the
engine with the longest queue, which streams to nobody, drew all long prompts: in `make bench
NAME=router-quality` they waited twice as long for their first tokens, and nobody gained."""

LOAD_RATIO: Mapping[Tier, float] = {Tier.HOST: 0.05, Tier.SHARED: 0.1}
"""Time to load a token over the time to compute it, until somebody measured it. Published for host RAM on an
H100: 2 to 22 times sooner than computing (vLLM's blog of 2026-01-08 on the offloading connector); a store is
slower."""


def predict(query: RouteQuery, engine: EngineView, match: PrefixMatch) -> Prediction:
    """The seconds `query` would take to its first token on `engine`, which holds `match` of its prefix."""
    wait_s = engine.wait_s if query.lora is None else engine.wait_s + adapter_wait_s(query, engine)
    if match.shared == match.device:  # mostly: nothing of it has to be loaded, and there is nothing to weigh
        return _with(query, engine, wait_s, match)
    options = [_with(query, engine, wait_s, used) for used in _uses(match)]
    return min(options, key=lambda option: option.ttft_s)


def predict_all(
    query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
) -> dict[EngineId, Prediction]:
    """`predict` for each engine; one without an entry in `matches` holds nothing."""
    return {engine.id: predict(query, engine, matches.get(engine.id, NO_MATCH)) for engine in engines}


def imposed_delay_s(engine: EngineView, prediction: Prediction) -> float:
    """Seconds that the prefill takes from the decodes running on `engine`, summed over them.

    vLLM computes a prompt chunk in the same steps as the running decodes, so while the prefill lasts each of
    them waits about as long as it takes; the overhead is no part of that, since the decodes' own steps have
    it too. Loads run beside the steps and delay nobody.
    """
    return engine.num_decoding * max(0.0, prediction.prefill_s - engine.prefill.overhead_s)


def score_s(engine: EngineView, prediction: Prediction) -> float:
    """What `predicted_ttft` makes least."""
    return prediction.ttft_s + OTHERS_WEIGHT * imposed_delay_s(engine, prediction)


def host_load_s(engine: EngineView, prediction: Prediction) -> float:
    """The part of `prediction.load_s` that is spent on the host tier; the rest is the shared store's."""
    return _load_s(engine, Tier.HOST, prediction.match.host - prediction.match.device)


def busyness(engine: EngineView) -> tuple[int, int]:
    """Orders engines by load alone: requests in flight, then prompt tokens queued."""
    return engine.num_in_flight, engine.queued_prefill_tokens


def _uses(match: PrefixMatch) -> list[PrefixMatch]:
    """The ways to use a match, the longest first: on a tie more is reused."""
    return [
        match,
        PrefixMatch(match.device, match.host, match.host, match.unproven),
        PrefixMatch(match.device, match.device, match.device, match.unproven),
    ]


def _with(query: RouteQuery, engine: EngineView, wait_s: float, used: PrefixMatch) -> Prediction:
    host_s = _load_s(engine, Tier.HOST, used.host - used.device)
    shared_s = _load_s(engine, Tier.SHARED, used.shared - used.host)
    # A prompt that is held in full still needs its last token computed to have something to sample from.
    num_cached = max(0, min(used.total, query.num_tokens - 1))
    return Prediction(used, wait_s, host_s + shared_s, engine.prefill.seconds(query.num_tokens, num_cached))


def _load_s(engine: EngineView, tier: Tier, num_tokens: int) -> float:
    if not num_tokens:
        return 0.0
    cost = engine.loads.get(tier)
    if cost is None:
        return LOAD_RATIO[tier] * engine.prefill.a_s_per_token * num_tokens
    return cost.seconds(num_tokens)
