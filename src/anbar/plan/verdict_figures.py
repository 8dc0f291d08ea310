"""The figures under a verdict, each with its arithmetic."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from anbar.plan import verdict_arithmetic as how_of
from anbar.plan.answer import Figure, in_words
from anbar.plan.facts import Facts, Written
from anbar.plan.options import Option
from anbar.plan.reasons import Choice

_MOST_TENANTS = 10


class Tenant(msgspec.Struct, frozen=True):
    """What one scope saves."""

    scope: str
    num_requests: int
    saved_tokens: int
    """Not computed, beyond what the GPUs find."""
    saved_s: float
    """Of the engines, less the time to load."""


def options_of(facts: Facts) -> dict[str, Option]:
    """By the name of the verdict that they would be."""
    found = {"neither": facts.neither}
    if facts.stack.host_tokens:
        found["native"] = facts.native
    if facts.stack.store is not None:
        found["shared"] = facts.shared
    return found


def figures_of(facts: Facts, choice: Choice) -> tuple[Figure, ...]:
    """All of them, in the order in which a reader asks."""
    options = options_of(facts)
    return (
        *_reuse(facts),
        *_found(facts, options),
        *_avoided(facts, options, choice),
        *_times(facts, options),
        *_limits(facts, choice),
        *_costs(facts),
    )


def _reuse(facts: Facts) -> Iterator[Figure]:
    workload, kv = facts.options.workload, facts.stack.engine.host_bytes_per_token
    num, size = len(workload.requests), facts.options.shared.step_tokens
    yield Figure("requests", num, "count", f"in {in_words(workload.span_s, 's')}")
    yield Figure("prompt tokens", facts.num_prompt, "tokens", f"{facts.num_prompt / num:,.0f} a request")
    how = f"different blocks of {size} that came again, up to the longest reach; {kv:,} bytes a token"
    yield Figure("working set", facts.working_set * kv, "bytes", f"{facts.working_set:,.0f} tokens: {how}")
    yield Figure("found by a cache without bounds", facts.best, "share", "of prompt tokens, cold at first")


def _found(facts: Facts, options: dict[str, Option]) -> Iterator[Figure]:
    stack = facts.stack
    joined = f" x {stack.num_joined} engines" if stack.num_joined > 1 else ""
    held = {
        "neither": ("the GPUs", f"an LRU of {stack.pool:,} tokens{joined}"),
        "native": (
            "host RAM",
            f"an LRU of {max(stack.pool, stack.host_tokens):,} tokens{joined}: the larger",
        ),
    }
    store = stack.store
    if store is not None:
        size = "without bounds" if store.num_bytes is None else f"of {in_words(store.num_bytes, 'bytes')}"
        held["shared"] = ("the store", f"an LRU {size} for all engines, as far as loading beats computing")
    for name, option in options.items():
        tier, how = held[name]
        yield Figure(f"prompt tokens found with {tier}", facts.share(option), "share", how)


def _avoided(facts: Facts, options: dict[str, Option], choice: Choice) -> Iterator[Figure]:
    name = choice.value if choice is not Choice.NEITHER else max(options, key=lambda name: name != "neither")
    option = options.get(name, facts.neither)
    if option is facts.neither:
        return
    more = option.found - facts.neither.found
    saved = facts.options.computed(facts.neither.found) - facts.options.computed(option.found)
    how = f"with {name}, beyond what the GPUs find"
    yield Figure("prefills avoided or shortened", int((more > 0).sum()), "count", f"{how}: requests")
    yield Figure("prompt tokens not computed", int(more.sum()), "tokens", how)
    before, after = (
        float(facts.options.computed(found).sum()) for found in (facts.neither.found, option.found)
    )
    loads = float(option.load_s.sum())
    spent = f"{in_words(before, 's')} - {in_words(after, 's')} of computing prompts"
    yield Figure(
        "GPU time not spent on them",
        float(saved.sum()),
        "s",
        f"{spent}, {how}; {in_words(loads, 's')} of loading are not taken off",
    )


def _times(facts: Facts, options: dict[str, Option]) -> Iterator[Figure]:
    stack, num = facts.stack, len(facts.options.prompt)
    for name, option in options.items():
        how = how_of.first_token(facts, option)
        yield Figure(f"mean time to first token, {name}", float(option.first_token_s.mean()), "s", how)
    yield Figure("time of engines for answers", facts.options.decode_s, "s", how_of.answers(facts))
    for name, option in options.items():
        overhead = stack.shared_overhead if name == "shared" else stack.native_overhead
        how = how_of.engine_time(facts, option, overhead)
        yield Figure(f"time of engines, {name}", option.engine_s, "s", how)
    for name, option in options.items():
        used = facts.options.utilisation(option)
        if used is not None:
            how = f"{num:,} requests x {stack.num_engines} / {in_words(option.engine_s, 's')} of all engines"
            rate = num * stack.num_engines / option.engine_s
            yield Figure(f"most requests a second, {name}", rate, "count", how)
        elif option is not facts.neither:
            how = f"{in_words(facts.neither.engine_s, 's')} of engines / {in_words(option.engine_s, 's')} - 1"
            yield Figure(f"throughput gained, {name}", facts.gain(option, facts.neither), "share", how)


def _limits(facts: Facts, choice: Choice) -> Iterator[Figure]:
    stack = facts.stack
    pool = stack.pool * stack.num_joined
    yield Figure(
        "HBM utilisation (working set / KV pool)",
        facts.working_set / pool,
        "share",
        f"{facts.working_set:,.0f} / {pool:,} tokens; not vLLM's gauge, which counts running requests",
    )
    if stack.host_tokens:
        even = facts.break_even
        how = "host RAM of this size gains time at no size of the pool"
        if even is not None:
            how = (
                f"{facts.working_set:,.0f} / {even:,.0f} tokens, the largest pool beside which RAM gains time"
            )
        value = float("inf") if even is None else facts.working_set / even
        yield Figure("break-even HBM utilisation", value, "share", how)
    yield Figure("KV of requests that run at once", facts.at_once, "tokens", how_of.at_once(facts))
    yield from _host_ram(facts, choice)


def to_give(facts: Facts, choice: Choice) -> int:
    """Host RAM for each engine, by the verdict: no more than there is."""
    if choice is Choice.NEITHER:
        return 0
    given = facts.stack.host_bytes or 0
    return min(given, facts.advised_bytes) or given


def _host_ram(facts: Facts, choice: Choice) -> Iterator[Figure]:
    given, advised = to_give(facts, choice), facts.advised_bytes
    how = how_of.host_ram(facts)
    if choice is Choice.NEITHER:
        how = "none, by this verdict"
    elif given != advised:
        how = "all that there is"
    yield Figure("host RAM to give each engine", given, "bytes", how)
    if advised > given:
        yield Figure("host RAM that would pay, each engine", advised, "bytes", how_of.host_ram(facts))


def _costs(facts: Facts) -> Iterator[Figure]:
    costs, written = facts.throughput, Written.of(facts)
    yield Figure("KV written by an engine", written.rate, "bytes/s", how_of.written(facts, written))
    store = facts.stack.store
    if store is not None:
        rate = store.medium.cost_for(facts.stack.engine.num_gpus).bytes_per_s
        yield Figure(
            "of the store's rate",
            written.rate / rate,
            "share",
            f"{in_words(written.rate, 'bytes/s')} / {in_words(rate, 'bytes/s')}: beyond 1 writes are skipped",
        )
    yield Figure("hits that pay for storing", costs.hits_needed(), "share", how_of.hits_needed(facts))


def tenants_of(facts: Facts, choice: Choice) -> tuple[Tenant, ...]:
    """Who saves most."""
    requests = facts.options.workload.requests
    option = options_of(facts).get(choice.value, facts.neither)
    if choice is Choice.NEITHER or not any(asked.scope for asked in requests):
        return ()
    tokens = option.found - facts.neither.found
    seconds = (
        facts.options.computed(facts.neither.found) - facts.options.computed(option.found) - option.load_s
    )
    of: dict[str, list[int]] = defaultdict(list)
    for place, asked in enumerate(requests):
        of[asked.scope].append(place)
    found = [
        Tenant(scope, len(places), int(tokens[places].sum()), float(seconds[places].sum()))
        for scope, places in of.items()
    ]
    return tuple(sorted(found, key=lambda tenant: (-tenant.saved_s, tenant.scope))[:_MOST_TENANTS])
