"""How a verdict's figures come about, with the numbers put in, so that a reader can do them again."""

import numpy as np

from anbar.plan.answer import in_words
from anbar.plan.facts import NEARLY_ALL, Facts, Written
from anbar.plan.options import Option


def first_token(facts: Facts, option: Option) -> str:
    """Of the mean over prompts of n tokens, of which m are found."""
    options, cost = facts.options, facts.stack.engine.prefill.cost
    found = np.minimum(option.found, options.prompt - 1).astype(float)
    new = float((options.prompt - found).mean())
    squares = float((options.prompt.astype(float) ** 2 - found**2).mean())
    text = (
        f"{in_words(cost.overhead_s, 's')} + {cost.a_s_per_token * 1e6:.4g} µs x {new:,.0f} + "
        f"{cost.b_s_per_token2 * 1e9:.4g} ns x {squares:.4g}"
    )
    load_s = float(option.load_s.mean())
    if load_s:
        text += f" + {in_words(load_s, 's')} of loading"
    other_s = float((option.first_token_s - options.computed(option.found) - option.load_s).mean())
    if other_s > 1e-9:
        text += f" + {in_words(other_s, 's')} of asking the store"
    p90 = in_words(float(np.percentile(option.first_token_s, 90)), "s")
    return f"{text}: means of n - m and n² - m², m of n tokens found; p90 {p90}; nobody waits"


def engine_time(facts: Facts, option: Option, overhead: float) -> str:
    """Of all engines, for the whole log."""
    options = facts.options
    computed, loads = float(options.computed(option.found).sum()), float(option.load_s.sum())
    text = f"{in_words(computed, 's')} of prompts + {in_words(options.decode_s, 's')} of answers"
    if option is facts.neither:
        return text
    without = options.without_s(facts.stack.pool)
    storing = f"{in_words(overhead, 'share')} x {in_words(without, 's')} of storing"
    return f"{text} + {in_words(loads, 's')} of loading + {storing}"


def answers(facts: Facts) -> str:
    """The part of them that is decoding."""
    options, decode = facts.options, facts.options.decode
    return (
        f"{int(options.answer.sum()):,} tokens x ({in_words(decode.step_s, 's')} a step / "
        f"{options.running:.3g} answers in it + {options.context:,.0f} tokens of KV x "
        f"{decode.s_per_kv_token * 1e9:.4g} ns)"
    )


def at_once(facts: Facts) -> str:
    """Requests on one engine at a time, and the tokens that they need."""
    options, load = facts.options, facts.options.load
    wanted = options.wanted
    if load is None:
        text = f"{wanted:.3g} requests at a time on an engine"
    else:
        each, decode = load.requests_per_s * load.num_answer, options.decode
        prompts, reads = load.requests_per_s * load.prefill_s, each * load.context * decode.s_per_kv_token
        text = (
            f"{each:.4g} tokens/s of answers x {in_words(decode.step_s, 's')} / (1 - {prompts:.3g} of "
            f"prompts - {reads:.3g} of reading KV) = {wanted:.3g} requests at a time on an engine"
        )
        if wanted == float("inf"):
            text = f"prompts take {prompts:.3g} of an engine's time, reading KV {reads:.3g}: requests pile up"
    pool = f"its pool has {facts.stack.pool:,}"
    return f"{text}; different blocks of as many in a row, and half of their answers; {pool}"


def host_ram(facts: Facts) -> str:
    """The advice."""
    if facts.host_advice is None:
        return "no size pays"
    kv = facts.stack.engine.host_bytes_per_token
    option = facts.options.native(facts.host_advice)
    saved = in_words(facts.neither.engine_s - option.engine_s, "s")
    return (
        f"{facts.host_advice:,} tokens x {kv:,} bytes, in whole GB: the least that saves {saved} of engines, "
        f"{in_words(NEARLY_ALL, 'share')} of what any RAM saves"
    )


def written(facts: Facts, found: Written) -> str:
    """By one engine."""
    options, engine = facts.options, facts.stack.engine
    busy = min(1.0, options.utilisation(facts.neither) or 1.0)
    return (
        f"{busy:.3g} of its time x ({int(options.prompt.sum()):,} - {int(facts.neither.found.sum()):,} + "
        f"{int(options.answer.sum()):,}) tokens x {engine.host_bytes_per_token:,} bytes / "
        f"{in_words(facts.neither.engine_s, 's')}; {in_words(found.rate / found.link, 'share')} of "
        f"{in_words(found.link, 'bytes/s')}"
    )


def hits_needed(facts: Facts) -> str:
    """Overhead over what a hit saves."""
    costs, engine = facts.throughput, facts.stack.engine
    typical = max(facts.stack.chunk_tokens, int(facts.options.prompt.mean()))
    compute_s = engine.prefill.cost.seconds(typical)
    load_s = costs.load_ratio * compute_s
    return (
        f"{costs.store_overhead:g} / ({costs.prefill_share:.3g} x (1 - {costs.load_ratio:.3g})): overhead / "
        f"(prefill's share of {in_words(facts.neither.engine_s, 's')} x (1 - load time / prefill time)), "
        f"{in_words(load_s, 's')} and {in_words(compute_s, 's')} for {typical:,} tokens"
    )
