"""The whole answer of the advisor: verdict, reasons, figures, how sure it is, and what would change it."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from anbar.plan.answer import Figure, in_words
from anbar.plan.capacities import Capacity, capacities_of
from anbar.plan.confidence import STRUCTURAL, Doubt, level, log_doubts
from anbar.plan.estimates import estimated
from anbar.plan.facts import Facts
from anbar.plan.options import Options
from anbar.plan.reasons import Choice, Kind, Reason, decide
from anbar.plan.stack import Stack
from anbar.plan.verdict_figures import Tenant, figures_of, tenants_of, to_give
from anbar.plan.verdict_notes import assumptions_of, prefers_lmcache, warnings_of
from anbar.plan.workload import Workload

_POINTS = 40


class CurvePoint(msgspec.Struct, frozen=True):
    """Of the miss-ratio curve."""

    tokens: float
    num_bytes: float
    found: float
    """Share of prompt tokens that an LRU of that size for everybody would have held."""


class Change(msgspec.Struct, frozen=True):
    """What would change the verdict, and to what."""

    what: str
    choice: Choice
    kind: Kind


class Verdict(msgspec.Struct, frozen=True):
    """All of it; sizes in bytes, times in seconds."""

    choice: Choice
    reasons: tuple[Reason, ...]
    """The main one first."""
    figures: tuple[Figure, ...]
    estimates: tuple[Figure, ...]
    """Of queues and preemptions, by formulas: for whoever has not simulated them."""
    capacities: tuple[Capacity, ...]
    """What GPUs, host RAM and store would have found, and sizes between them."""
    curve: tuple[CurvePoint, ...]
    tenants: tuple[Tenant, ...]
    """Who saves most, by what was chosen; empty when nobody is told apart."""
    host_bytes: int
    """To give to each engine."""
    confidence: str
    """high, medium or low."""
    doubts: tuple[str, ...]
    changes: tuple[Change, ...]
    lmcache: str
    """Why LMCache would be the better one of the shared options; "": it is not."""
    warnings: tuple[str, ...]
    missing: tuple[str, ...]
    """What nobody said, by the name under which to say it."""
    assumptions: tuple[str, ...]


def verdict_of(workload: Workload, stack: Stack, missing: tuple[str, ...] = ()) -> Verdict:
    """Raises Impossible when the deployment is."""
    stack.check()
    options = Options(workload, stack)
    if stack.host_bytes is None:
        wanted = Facts(options).advised_bytes
        options = options.but(replace(stack, host_bytes=wanted))
    facts = Facts(options)
    choice, reasons = decide(facts)
    changes = tuple(_changes(options, choice))
    near = (Doubt(f"{change.what}: {change.choice}") for change in changes if _is_near(change))
    doubts = (*_doubts(facts, stack, choice, reasons[0]), *near)
    return Verdict(
        choice=choice,
        reasons=reasons,
        figures=figures_of(facts, choice),
        estimates=tuple(estimated(facts, choice)),
        capacities=capacities_of(facts),
        curve=tuple(_curve(facts)),
        tenants=tenants_of(facts, choice),
        host_bytes=to_give(facts, choice),
        confidence=level(doubts),
        doubts=tuple(doubt.text for doubt in doubts),
        changes=changes,
        lmcache=prefers_lmcache(facts, choice),
        warnings=warnings_of(facts, choice),
        missing=missing,
        assumptions=assumptions_of(facts, said_host=stack.host_bytes is not None),
    )


def _curve(facts: Facts) -> Iterator[CurvePoint]:
    kv, depths = facts.stack.engine.host_bytes_per_token, facts.options.shared
    for tokens in depths.capacities(_POINTS):
        found = float(depths.found(tokens).sum()) / facts.num_prompt
        yield CurvePoint(tokens, tokens * kv, found)


def _doubts(facts: Facts, asked: Stack, choice: Choice, main: Reason) -> Iterator[Doubt]:
    """Why the verdict may be wrong."""
    yield from log_doubts(facts, choice, main, are_times_real=asked.concurrency is None)
    if not asked.engine.prefill.is_sure:
        text = (
            "prefill times of this model are known within a factor of two or so: `anbar calibrate` measures"
        )
        yield Doubt(text)
    if asked.host_bytes is None and main.kind not in STRUCTURAL:
        yield Doubt("how much host RAM there is was not said")
    if main.kind is Kind.PREEMPTIONS:
        yield Doubt("how many requests are preempted is not known from a log")


_NEAR = ("the pool 20 % ", "prefill 20 % ")


def _is_near(change: Change) -> bool:
    """A change that may be the truth: within what estimates are worth."""
    return change.what.startswith(_NEAR)


def _changes(options: Options, choice: Choice) -> Iterator[Change]:
    """What was tried, where it leads to another verdict."""
    for what, tried in _alternatives(options):
        other, reasons = decide(Facts(tried))
        if other is not choice:
            yield Change(what, other, reasons[0].kind)


def _alternatives(options: Options) -> Iterator[tuple[str, Options]]:
    yield from ((what, options.but(stack)) for what, stack in _other_stacks(options))
    for change, factor in (("smaller", 0.8), ("larger", 1.2)):
        yield f"a working set 20 % {change}", options.but(options.stack, factor)


def _other_stacks(options: Options) -> Iterator[tuple[str, Stack]]:
    stack = options.stack
    for change, factor in (("smaller", 0.8), ("larger", 1.2)):
        yield f"the pool 20 % {change}", replace(stack, pool_tokens=int(stack.pool * factor))
    for change, factor in (("faster", 0.8), ("slower", 1.2)):
        cost = stack.engine.prefill.cost
        scaled = msgspec.structs.replace(
            cost,
            a_s_per_token=cost.a_s_per_token * factor,
            b_s_per_token2=cost.b_s_per_token2 * factor,
            overhead_s=cost.overhead_s * factor,
        )
        yield f"prefill 20 % {change}", replace(stack, engine=replace(stack.engine, measured=scaled))
    yield from _other_ram(options)
    yield "a pool twice as large", replace(stack, pool_tokens=2 * stack.pool)
    yield "twice as many engines", replace(stack, num_engines=2 * stack.num_engines)
    if stack.concurrency is not None and stack.concurrency > 1:
        yield "half the concurrency", replace(stack, concurrency=stack.concurrency / 2)
    if stack.num_engines > 1:
        what = "without" if stack.has_affinity else "with"
        yield (
            f"{what} routing to where the prefix is",
            replace(stack, has_affinity=not stack.has_affinity),
        )
    store = stack.store
    if store is not None and not store.medium.for_each_gpu:
        faster = replace(store.medium, cost=replace(store.medium.cost, bytes_per_s=4 * _rate(stack)))
        yield "a store four times as fast", replace(stack, store=replace(store, medium=faster))


def _other_ram(options: Options) -> Iterator[tuple[str, Stack]]:
    """More, as far as that pays, and less: what comes in a cycle is found whole or not at all."""
    stack, given = options.stack, options.stack.host_bytes or 0
    wanted = Facts(options).advised_bytes
    if wanted > given:
        yield f"host RAM of {in_words(wanted, 'bytes')} an engine", replace(stack, host_bytes=wanted)
    for factor in (0.8, 0.5) if given else ():
        less = int(given * factor)
        yield f"host RAM of {in_words(less, 'bytes')} an engine", replace(stack, host_bytes=less)


def _rate(stack: Stack) -> float:
    assert stack.store is not None
    return stack.store.medium.cost.bytes_per_s
