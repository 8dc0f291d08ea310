"""Neither, native or shared, and why: the rules, in the order in which they are asked."""

from enum import StrEnum

import msgspec

from anbar.plan.answer import in_words
from anbar.plan.facts import MIN_GAIN, Facts
from anbar.plan.options import Option

OVERLOADED = 0.95
"""Of what engines can do at most: beyond, requests wait for each other whatever the cache holds."""
_TOO_SMALL = 1.5
"""Requests that want to run, over what the pool holds: up to here preemptions come and go and loading what
was preempted is a cure; beyond, most requests wait for room."""
_MANY = 0.01
"""Of requests that cannot run, from which on a log is not one of these engines."""
_POINT = 0.01
_NEAR = 0.95
_WAITS = 5.0


class Choice(StrEnum):
    """The verdict."""

    NEITHER = "neither"
    NATIVE = "native"
    SHARED = "shared"


class Kind(StrEnum):
    """Reasons by name."""

    BELOW_CHUNK = "below_chunk"
    TOO_LONG = "too_long"
    OVERLOAD = "overload"
    POOL_TOO_SMALL = "pool_too_small"
    NO_REUSE = "no_reuse"
    FITS_DEVICE = "fits_device"
    HOST_BELOW_POOL = "host_below_pool"
    TIER_TOO_SMALL = "tier_too_small"
    SLOW_STORE = "slow_store"
    ROUND_TRIPS = "round_trips"
    STORE_ADDS_NOTHING = "store_adds_nothing"
    TOO_FEW_HITS = "too_few_hits"
    PREEMPTIONS = "preemptions"
    HOST_PAYS = "host_pays"
    STORE_PAYS = "store_pays"
    WAITING = "waiting"


class Reason(msgspec.Struct, frozen=True):
    """One, in a sentence with its numbers."""

    kind: Kind
    text: str


def decide(facts: Facts) -> tuple[Choice, tuple[Reason, ...]]:
    """The verdict, its main reason, and the others."""
    wrong = _wrong(facts)
    if wrong:
        return Choice.NEITHER, (*wrong, *_waiting(facts))
    base, choice = facts.neither, Choice.NEITHER
    if facts.stack.host_tokens and facts.pays(facts.native, base):
        base, choice = facts.native, Choice.NATIVE
    store = facts.stack.store is not None
    if store and facts.pays(facts.shared, base):
        return Choice.SHARED, (_store_pays(facts, base, choice), *_waiting(facts))
    against = (_against_store(facts),) if store else ()
    if choice is Choice.NATIVE:
        slow = [reason for reason in against if reason.kind is not Kind.STORE_ADDS_NOTHING]
        rest = [reason for reason in against if reason.kind is Kind.STORE_ADDS_NOTHING]
        return choice, (*slow, _host_pays(facts), *rest, *_preempts(facts), *_waiting(facts))
    preempts = _preempts(facts)
    if preempts and facts.stack.host_tokens > facts.stack.pool:
        return Choice.NATIVE, (*preempts, *_against_host(facts))
    host = _against_host(facts)
    is_about_store = against and against[0].kind is not Kind.STORE_ADDS_NOTHING
    if is_about_store and host[0].kind not in (Kind.NO_REUSE, Kind.FITS_DEVICE):
        return choice, (*against, *host, *preempts, *_waiting(facts))
    return choice, (*host, *against, *preempts, *_waiting(facts))


def _wrong(facts: Facts) -> tuple[Reason, ...]:
    """What no cache mends."""
    stack = facts.stack
    if facts.chunk_share < 0.05:
        longest = int(facts.options.prompt.max())
        text = (
            f"{in_words(1 - facts.chunk_share, 'share')} of prompt tokens are in prompts of less than one "
            f"chunk ({stack.chunk_tokens} tokens; the longest prompt has {longest:,}): nothing is stored"
        )
        return (Reason(Kind.BELOW_CHUNK, text),)
    cannot = _cannot_run(facts)
    if cannot:
        return cannot
    used = [facts.options.utilisation(option) for option in _all(facts)]
    least = min((share for share in used if share is not None), default=0.0)
    if least > OVERLOADED:
        text = (
            f"engines are asked for {in_words(used[0] or 0.0, 'share')} of what they can do, and for "
            f"{in_words(least, 'share')} with the best cache: requests wait for each other, not for the "
            "cache. More engines, or admission (router.slo_ttft_s), first"
        )
        return (Reason(Kind.OVERLOAD, text),)
    if facts.at_once > _TOO_SMALL * stack.pool:
        return (_too_small(facts),)
    return ()


def _cannot_run(facts: Facts) -> tuple[Reason, ...]:
    """Requests that no engine takes, and more engines would not."""
    options, most = facts.options, facts.stack.engine.max_tokens
    longest, num = int((options.prompt + options.answer).max()), len(options.prompt)
    if most is not None and options.beyond_context > _MANY * num:
        text = (
            f"{options.beyond_context:,} of {num:,} requests are longer than the model's context "
            f"({most:,} tokens; the longest needs {longest:,}): vLLM refuses them. This log is of another "
            "model, or config.json needs the rope scaling that it was served with"
        )
        return (Reason(Kind.TOO_LONG, text),)
    if options.too_long > _MANY * num:
        text = (
            f"{options.too_long:,} of {num:,} requests need more KV than an engine's pool holds "
            f"({facts.stack.pool:,} tokens; the longest request needs {longest:,}): none of them can run, on "
            "however many engines. A larger pool first (KV in FP8, more or larger GPUs in an engine, smaller "
            "weights)"
        )
        return (Reason(Kind.POOL_TOO_SMALL, text),)
    return ()


def _all(facts: Facts) -> list[Option]:
    return [facts.neither, facts.native, *([facts.shared] if facts.stack.store is not None else [])]


def _too_small(facts: Facts) -> Reason:
    wanted, pool = facts.options.wanted, facts.stack.pool
    fits = pool / facts.options.context
    need = (
        f"{wanted:.3g} requests at a time on an engine need {facts.at_once:,.0f} tokens of KV"
        if facts.at_once < float("inf")
        else "requests pile up"
    )
    text = (
        f"{need} and its pool holds {pool:,} ({fits:.2g} requests): what hurts is waiting for room and "
        "preemption. Lower the concurrency, or make the pool larger (KV in FP8, more or larger GPUs, "
        "smaller weights); then ask again"
    )
    return Reason(Kind.POOL_TOO_SMALL, text)


def _preempts(facts: Facts) -> tuple[Reason, ...]:
    pool = facts.stack.pool
    if facts.at_once <= pool:
        return ()
    text = (
        f"{facts.options.wanted:.3g} requests at a time on an engine need {facts.at_once:,.0f} tokens of KV, "
        f"{in_words(facts.at_once / pool - 1, 'share')} more than its pool ({pool:,}): some are preempted, "
        "and each of those would be loaded instead of computed again, shared prefix or not"
    )
    return (Reason(Kind.PREEMPTIONS, text),)


def _waiting(facts: Facts) -> tuple[Reason, ...]:
    """What was measured, if that says that requests wait for something else."""
    seen = [asked.first_token_s for asked in facts.options.workload.requests]
    measured = sorted(value for value in seen if value is not None)
    if not measured:
        return ()
    median, alone = measured[len(measured) // 2], float(facts.neither.first_token_s.mean())
    if median < _WAITS * alone or median < 1.0:
        return ()
    text = (
        f"the median time to first token was {in_words(median, 's')}, of which computing is "
        f"{in_words(alone, 's')}: the rest is waiting, which is load or room rather than cache"
    )
    return (Reason(Kind.WAITING, text),)


def _against_host(facts: Facts) -> tuple[Reason, ...]:
    """Why host RAM does not pay, the main reason first."""
    stack = facts.stack
    device, best = facts.share(facts.neither), facts.best
    if best < _POINT:
        text = f"{in_words(best, 'share')} of prompt tokens come again: there is nothing to find"
        return (Reason(Kind.NO_REUSE, text),)
    if device >= _NEAR * best:
        text = (
            f"the GPUs hold {in_words(device, 'share')} of the {in_words(best, 'share')} of prompt tokens "
            f"that come again ({facts.working_set:,.0f} tokens, and they hold "
            f"{stack.pool * stack.num_joined:,}): "
            "prefix caching in HBM already has them"
        )
        return (Reason(Kind.FITS_DEVICE, text),)
    if stack.host_tokens <= stack.pool:
        return (_below_pool(facts),)
    added = facts.share(facts.native) - device
    if facts.host_advice is not None:
        text = (
            f"host RAM of {in_words(stack.host_bytes or 0, 'bytes')} an engine adds "
            f"{in_words(added, 'share')} of prompt tokens: what comes again does so after more than that. "
            f"{in_words(facts.advised_bytes, 'bytes')} an engine would pay"
        )
        return (Reason(Kind.TIER_TOO_SMALL, text),)
    return (_too_few(facts, added),)


def _below_pool(facts: Facts) -> Reason:
    stack = facts.stack
    text = (
        f"host RAM of {in_words(stack.host_bytes or 0, 'bytes')} an engine holds "
        f"{stack.host_tokens:,} tokens, the GPU's pool {stack.pool:,}: what is in HBM is in host RAM too "
        "(tiers are inclusive), so it adds nothing and costs its copies"
    )
    if not stack.host_tokens:
        text = f"no host RAM to give to engines: below the GPU's pool ({stack.pool:,} tokens) it adds nothing"
    if facts.host_advice is not None:
        text += f". {in_words(facts.advised_bytes, 'bytes')} an engine would pay"
    return Reason(Kind.HOST_BELOW_POOL, text)


def _too_few(facts: Facts, added: float) -> Reason:
    costs = facts.throughput
    text = (
        f"host RAM would find {in_words(added, 'share')} of prompt tokens more; storing costs "
        f"{in_words(costs.store_overhead, 'share')} of the engine's time and pays from "
        f"{in_words(costs.hits_needed(), 'share')} on (prefill is "
        f"{in_words(costs.prefill_share, 'share')} of its time, loading takes {costs.load_ratio:.2g} "
        "of computing)"
    )
    return Reason(Kind.TOO_FEW_HITS, text)


def _host_pays(facts: Facts) -> Reason:
    stack = facts.stack
    gain = facts.gain(facts.native, facts.neither)
    before, after = facts.neither.first_token_s.mean(), facts.native.first_token_s.mean()
    text = (
        f"host RAM of {in_words(stack.host_bytes or 0, 'bytes')} an engine finds "
        f"{in_words(facts.share(facts.native), 'share')} of prompt tokens where the GPUs find "
        f"{in_words(facts.share(facts.neither), 'share')}: engines serve {in_words(gain, 'share')} more at "
        f"most, and the mean time to first token without waiting goes from {in_words(before, 's')} to "
        f"{in_words(after, 's')}"
    )
    return Reason(Kind.HOST_PAYS, text)


def _store_pays(facts: Facts, base: Option, choice: Choice) -> Reason:
    store = facts.stack.store
    assert store is not None
    than = "host RAM alone finds" if choice is Choice.NATIVE else "the GPUs find"
    before, after = base.first_token_s.mean(), facts.shared.first_token_s.mean()
    text = (
        f"with the store ({store.name}) {in_words(facts.share(facts.shared), 'share')} of prompt tokens are "
        f"found where {than} {in_words(facts.share(base), 'share')}: engines serve "
        f"{in_words(facts.gain(facts.shared, base), 'share')} more at most, and the mean time to first token "
        f"without waiting goes from {in_words(before, 's')} to {in_words(after, 's')}"
    )
    return Reason(Kind.STORE_PAYS, text)


def _against_store(facts: Facts) -> Reason:
    """Why it does not pay: its rate, its distance, or that it has nothing."""
    store = facts.stack.store
    assert store is not None
    found, always = facts.share(facts.native), facts.share(facts.shared_always)
    before, after = facts.native.first_token_s.mean(), facts.shared_always.first_token_s.mean()
    if always - found < _POINT:
        text = (
            f"the store ({store.name}) would find {in_words(always - found, 'share')} of prompt tokens more"
        )
        return Reason(Kind.STORE_ADDS_NOTHING, text)
    hits = f"hits would go from {in_words(found, 'share')} to {in_words(always, 'share')} of prompt tokens"
    if after <= before:
        gain = facts.gain(facts.shared, facts.native)
        text = (
            f"the store ({store.name}) gains less than it costs: {hits}, engines serve "
            f"{in_words(gain, 'share')} more, which is below {in_words(MIN_GAIN, 'share')}"
        )
        return Reason(Kind.STORE_ADDS_NOTHING, text)
    mean = f"{hits}, and the mean time to first token from {in_words(before, 's')} to {in_words(after, 's')}"
    length = facts.store_length
    shortest = "at no length" if length is None else f"from {length:,} tokens on"
    typical = f"prefixes found there have {facts.found_length:,} tokens, and loading wins {shortest}"
    cost, engine = store.medium.cost_for(facts.stack.engine.num_gpus), facts.stack.engine
    copy_s = engine.stored.bytes_of(facts.found_length) / cost.bytes_per_s
    waits = store.round_trip_s + store.lookup_s + cost.latency_s
    if waits > copy_s:
        text = (
            f"the store ({store.name}) takes {in_words(waits, 's')} before the first byte, lookup and load "
            f"together: {mean}; {typical}"
        )
        return Reason(Kind.ROUND_TRIPS, text)
    need = engine.stored.bytes_of(facts.found_length) / engine.prefill.cost.seconds(facts.found_length)
    text = (
        f"the store ({store.name}) brings {in_words(cost.bytes_per_s, 'bytes/s')}, below the "
        f"{in_words(need, 'bytes/s')} at which loading beats computing: {mean}; {typical}"
    )
    return Reason(Kind.SLOW_STORE, text)
