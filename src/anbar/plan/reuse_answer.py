"""What of a workload came again, and what caches of the sizes at hand would have held of it."""

from dataclasses import dataclass

from anbar.plan.answer import Answer, Figure, in_words
from anbar.plan.deployment import Deployment
from anbar.plan.workload import Reuse, Workload

_NEAR = 0.95
"""Of the best hit rate: what is beyond costs more than it gives."""
_POINT = 0.01


@dataclass(frozen=True, slots=True)
class Capacities:
    """Of all engines together, in bytes."""

    num_engines: int
    host_bytes: int = 0
    """Of each engine; 0: none."""
    store_bytes: int = 0
    """Of the shared store; 0: none."""


def reuse_in_tokens(workload: Workload, reuse: Reuse) -> Answer:
    """By capacity in tokens, when no model is given."""
    figures = _asked(workload, reuse)
    size = workload.block_size
    for share in (0.25, 0.5, 0.75, _NEAR):
        blocks = reuse.curve.capacity_for(share * reuse.curve.best)
        if blocks is not None:
            name = f"capacity for {in_words(share, 'share')} of the hits there could be"
            figures.append(Figure(name, blocks * size, "tokens", f"{blocks:,} blocks of {size}"))
    return Answer("What comes again", tuple(figures), _without_model(reuse), _assumed(reuse))


def _without_model(reuse: Reuse) -> str:
    if reuse.curve.best < _POINT:
        return "Hardly anything comes again: no cache of prefixes helps."
    best = in_words(reuse.curve.best, "share")
    return (
        f"At most {best} of prompt tokens need not be computed. Give a model and GPUs to see which tier "
        "holds how much of that."
    )


def reuse_by_tier(workload: Workload, reuse: Reuse, deployment: Deployment, sizes: Capacities) -> Answer:
    """By what the device, host RAM and a store of these sizes would have held."""
    kv = deployment.host_bytes_per_token
    pool = deployment.pool_tokens * sizes.num_engines * kv
    figures = _asked(workload, reuse)
    named = [
        ("the GPUs", pool),
        ("host RAM", sizes.host_bytes * sizes.num_engines),
        ("the store", sizes.store_bytes),
    ]
    best_bytes, before, gains = 0, 0.0, dict[str, float]()
    for name, num_bytes in named:
        if not num_bytes:
            continue
        best_bytes = max(best_bytes, num_bytes)
        hits = reuse.curve.hit_rate(best_bytes / kv / workload.block_size)
        gains[name] = hits - before
        how = f"an LRU of {in_words(num_bytes, 'bytes')}, {num_bytes // kv:,} tokens"
        if num_bytes < best_bytes:
            how += ": smaller than what is before it, which it repeats"
        figures.append(Figure(f"prompt tokens found with {name}", hits, "share", how))
        before = hits
    more = workload.num_prompt * (before - gains["the GPUs"])
    if len(gains) > 1:
        figures.append(
            Figure("tokens not computed, beyond the GPUs' own", more, "tokens", "of all that were asked for")
        )
    conclusion = _by_tier(reuse, gains)
    return Answer(
        "What comes again, and who holds it", tuple(figures), conclusion, _tier_notes(reuse, deployment)
    )


def _by_tier(reuse: Reuse, gains: dict[str, float]) -> str:
    device = gains["the GPUs"]
    if reuse.curve.best < _POINT:
        return "Hardly anything comes again: neither host RAM nor a store helps."
    held = f"The GPUs hold {in_words(device, 'share')} of the {in_words(reuse.curve.best, 'share')}"
    if device >= _NEAR * reuse.curve.best:
        return f"{held} that could be found: neither host RAM nor a store has much to add."
    told = [
        f"{name} {'adds ' + in_words(gain, 'share') if gain >= _POINT else 'adds nothing'}"
        for name, gain in list(gains.items())[1:]
    ]
    return f"{held} that could be found; {'; '.join(told) or 'say how much host RAM or store there is'}."


def _asked(workload: Workload, reuse: Reuse) -> list[Figure]:
    num, span_s, size = len(workload.requests), workload.span_s, workload.block_size
    rate = f"in {in_words(span_s, 's')}" if span_s else "at one moment"
    return [
        Figure("requests", num, "count", rate),
        Figure("prompt tokens", workload.num_prompt, "tokens", f"{workload.num_prompt / num:,.0f} a request"),
        Figure("working set", reuse.num_blocks * size, "tokens", f"different blocks of {size} tokens"),
        Figure(
            "found by a cache without bounds", reuse.curve.best, "share", "of prompt tokens, cold at first"
        ),
    ]


def _assumed(reuse: Reuse) -> tuple[str, ...]:
    exact = () if reuse.is_exact else ("a sample of the blocks was followed: within a point",)
    return ("engines reuse full blocks, and compute a prompt's last token", *exact)


def _tier_notes(reuse: Reuse, deployment: Deployment) -> tuple[str, ...]:
    return (
        *_assumed(reuse),
        "engines' caches count as one, as far as a router sends requests to where their prefix is",
        "tiers repeat each other (write-through): the largest counts, not the sum",
        "the room for KV is an estimate: vLLM logs the true number of tokens when it starts",
        *deployment.assumptions[1:],
    )
