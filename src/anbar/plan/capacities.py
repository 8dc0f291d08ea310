"""The miss-ratio curve at the sizes that matter: GPUs, host RAM, store, and some between them."""

from collections.abc import Iterator

import msgspec
import numpy as np

from anbar.plan.depths import Depths
from anbar.plan.facts import Facts

_BETWEEN = 5
_NEAR = 1.12
"""Sizes that differ by less than this factor from one that has a name tell nothing more."""


class Capacity(msgspec.Struct, frozen=True):
    """One size of a cache, and the share of prompt tokens that an LRU of that size would have held."""

    name: str
    """The tier that has this size; "": none has."""
    num_bytes: float
    found: float
    """Of one cache for all requests."""
    found_apart: float | None
    """Of caches that engines have for themselves, each of that size, between which requests go round; None:
    the engines' caches count as one."""


def capacities_of(facts: Facts) -> tuple[Capacity, ...]:
    """From half of the GPUs' pool to the largest there is, rising; empty where nothing comes again."""
    stack, shared = facts.stack, facts.options.shared
    if not facts.working_set:
        return ()
    kv = stack.engine.host_bytes_per_token
    named = dict(_named(facts))
    most = max(tokens for tokens in (*named.values(), facts.working_set) if tokens < float("inf"))
    least = min(stack.pool * stack.num_joined, facts.working_set) / 2
    between = [
        tokens
        for tokens in np.geomspace(least, most, _BETWEEN + 2).tolist()
        if all(max(tokens, other) / min(tokens, other) > _NEAR for other in named.values())
    ]
    apart = None if stack.has_affinity or stack.num_engines == 1 else facts.options.own
    sizes = [(tokens, name) for name, tokens in named.items()] + [(tokens, "") for tokens in between]
    return tuple(
        Capacity(
            name,
            tokens * kv,
            _share(facts, shared, tokens),
            None if apart is None else _share(facts, apart, tokens),
        )
        for tokens, name in sorted(sizes)
    )


def _named(facts: Facts) -> Iterator[tuple[str, float]]:
    """In tokens."""
    stack = facts.stack
    yield "the GPUs", float(stack.pool * stack.num_joined)
    if stack.host_tokens:
        yield "host RAM", float(stack.host_tokens * stack.num_joined)
    if stack.store is not None and stack.store.num_bytes is not None:
        yield "the store", stack.store.num_bytes / stack.engine.host_bytes_per_token
    yield "all that came again", facts.working_set


def _share(facts: Facts, depths: Depths, tokens: float) -> float:
    return float(depths.found(tokens).sum()) / facts.num_prompt
