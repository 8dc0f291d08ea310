"""How long a prompt waits for room in an engine's KV cache, as far as whoever sent the others can tell.

vLLM admits a prompt when blocks for all of it are free, and those of requests that run become free when
they end. Answers end one by one; with a mean of `answer_s` left, whatever their age, what is left of the
tokens they hold after t seconds is a share of `exp(-t / answer_s)`.

Tokens that came from the cache are not counted, neither of those that run nor of the new one: mostly
somebody else holds the same blocks, and a system prompt that all have in common must not look like a full
cache. What answers add is not known. So the wait is understated, never made up.
"""

import math

from anbar.core.fleet import EngineView


def room_wait_s(engine: EngineView, num_new: int) -> float:
    """Seconds until `engine` has room for `num_new` more tokens; 0.0 when it has, or when it is not known."""
    held = engine.kv_held_tokens
    if held + num_new <= engine.kv_tokens or not (engine.kv_tokens and held):
        return 0.0
    # The last of n answers is expected to end after the sum of answer_s / 1..n, so no wait is longer.
    left = max(engine.kv_tokens - num_new, held / (math.e * max(1, engine.num_in_flight)))
    return engine.answer_s * math.log(max(1.0, held / left))


def expected_in_flight(engine: EngineView, after_s: float, mean: float) -> float:
    """How many requests `engine` is expected to have in flight `after_s` seconds from now: those of today
    end, others come, and the more of them are new the more it is like the fleet, which has `mean` each."""
    if engine.answer_s <= 0.0:
        return engine.num_in_flight
    return mean + (engine.num_in_flight - mean) * math.exp(-after_s / engine.answer_s)
