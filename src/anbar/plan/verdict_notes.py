"""What a reader of a verdict should know beside its figures."""

from collections.abc import Iterator

from anbar.plan.answer import in_words
from anbar.plan.facts import FIRST_TOKEN, FIRST_TOKEN_S, MIN_GAIN, MOST_LOST, Facts
from anbar.plan.kv_size import kv_copies, kv_size
from anbar.plan.media import Medium
from anbar.plan.reasons import Choice
from anbar.plan.stack import Stack

_OUTSIDE = 0.2
"""Of the text, from which on a cache that is not of prefixes would be worth its trouble."""


def prefers_lmcache(facts: Facts, choice: Choice) -> str:
    """Why LMCache is the better one of the shared options, "" if it is not."""
    outside = facts.options.workload.outside_prefix or 0.0
    if outside >= _OUTSIDE:
        return (
            f"{in_words(outside, 'share')} of the text comes again behind another beginning, where no cache "
            "of prefixes finds it: LMCache's CacheBlend can, at some cost in answers"
        )
    if choice is Choice.SHARED and facts.stack.runs_lmcache:
        return "an LMCache server runs already: cache.mode lmcache needs nothing new"
    return ""


def warnings_of(facts: Facts, choice: Choice) -> tuple[str, ...]:
    """What may go wrong."""
    return tuple(_warnings(facts, choice))


def _warnings(facts: Facts, choice: Choice) -> Iterator[str]:
    stack, workload = facts.stack, facts.options.workload
    outside = workload.outside_prefix
    if outside is None:
        yield (
            "text that comes again behind another beginning (chunks of RAG in another order) is found by no "
            "cache of prefixes, and a log of blocks does not show how much there is of it"
        )
    elif outside >= 0.01:
        yield (
            f"{in_words(outside, 'share')} of the text came again behind another beginning: no cache of "
            "prefixes finds it; put what is common first"
        )
    if stack.uses_speculation and choice is not Choice.NEITHER:
        yield (
            "speculative decoding with offload: vLLM has served nothing from host RAM with MTP or EAGLE "
            "(vllm issue 52735, fixed) and ended with a store behind it (issue 55503): test it before you "
            "rely on it"
        )
    size = kv_size(stack.engine.config, stack.engine.kv_dtype)
    if size.note:
        yield f"{size.note}: all layers' KV is stored, and the GPUs hold more than is said here"
    copies = kv_copies(stack.engine.config, stack.engine.num_gpus)
    if copies.device > 1:
        yield f"each of {copies.device} ranks keeps the same KV: more GPUs in one engine hold no more of it"
    yield from _cannot_run(facts)
    yield from _cliff(facts, choice)
    store = stack.store
    if choice is Choice.SHARED and store is not None and store.medium.is_local and stack.num_engines > 1:
        yield f"{store.name} is in one machine: engines on others do not see it"
    if stack.host is not None and "0.11" in stack.host.source:
        yield "vLLM up to 0.11 copies in pieces of 8-32 KB: newer ones load about twice as fast"


def _cannot_run(facts: Facts) -> Iterator[str]:
    """Of a few requests; of many the verdict itself says it."""
    for num, why in (
        (facts.options.beyond_context, f"than the model's context ({facts.stack.engine.max_tokens} tokens)"),
        (facts.options.too_long, f"than an engine's pool ({facts.stack.pool:,} tokens)"),
    ):
        if num:
            yield f"{num:,} of {len(facts.options.prompt):,} requests are longer {why}: vLLM refuses them"


_CLIFF = 0.5
"""Of what a tier adds, lost with a fifth of its size: there is a cliff."""


def _cliff(facts: Facts, choice: Choice) -> Iterator[str]:
    """What comes in a cycle is found whole or not at all."""
    if choice is Choice.NEITHER or not facts.stack.host_tokens:
        return
    device, found = facts.share(facts.neither), facts.share(facts.native)
    less = facts.share(facts.options.native(0.8 * facts.stack.host_tokens))
    if found - less > _CLIFF * (found - device):
        yield (
            f"a cliff is near: with a fifth less host RAM, or a working set a quarter larger, "
            f"{in_words(less, 'share')} of prompt tokens would be found instead of {in_words(found, 'share')}"
        )


def assumptions_of(facts: Facts, *, said_host: bool) -> tuple[str, ...]:
    """What nobody said."""
    return tuple(_assumptions(facts, said_host))


def _assumptions(facts: Facts, said_host: bool) -> Iterator[str]:
    stack, options = facts.stack, facts.options
    yield from stack.engine.assumptions
    yield f"answers: {options.decode.source} (within a factor of two or so)"
    if stack.pool_tokens is None:
        yield f"the room for KV is an estimate ({stack.engine.pool_arithmetic}): vLLM logs the true number"
    if not said_host:
        yield f"host RAM as much as pays: {in_words(stack.host_bytes or 0, 'bytes')} an engine"
    yield f"host RAM: {_in_numbers(stack.host_medium, stack)}"
    if stack.store is not None:
        size = "" if stack.store.num_bytes is not None else "; without bounds"
        asks = in_words(stack.store.lookup_s, "s")
        yield f"the store: {_in_numbers(stack.store.medium, stack)}{size}; asking it takes each prompt {asks}"
    yield (
        f"storing takes {in_words(stack.native_overhead, 'share')} of an engine's throughput to host RAM, "
        f"{in_words(stack.shared_overhead, 'share')} with a store"
    )
    yield f"KV is stored and loaded in chunks of {stack.chunk_tokens} tokens; caches are LRU, cold at first"
    if stack.num_engines > 1:
        how = "go to where their prefix is" if stack.has_affinity else "go round between engines"
        yield f"requests {how}"
    if options.own.step_tokens > options.workload.block_size:
        block, step = options.workload.block_size, options.own.step_tokens
        yield f"of blocks of {block} tokens one in {step // block} was looked at"
    yield (
        f"a tier pays if engines serve {in_words(MIN_GAIN, 'share')} more and first tokens come no later, or "
        f"if these come {in_words(1 - FIRST_TOKEN, 'share')} and {in_words(FIRST_TOKEN_S, 's')} sooner while "
        f"at most {in_words(-MOST_LOST, 'share')} of engines' time is lost"
    )
    yield "KV of answers counts where a later prompt contains it, and is held as long as prompts'"


def _in_numbers(medium: Medium, stack: Stack) -> str:
    """A load takes so long before its first byte, then goes at that rate."""
    cost = medium.cost_for(stack.engine.num_gpus)
    rate = in_words(cost.bytes_per_s, "bytes/s")
    return f"{in_words(cost.latency_s, 's')} a load, then {rate} ({medium.source})"
