"""The prefix index against a naive model: any history of events, the same predictions; within tight limits
never more than the model's."""

import math
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, Tier
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import EngineHash, EngineId
from anbar.route.index import HINT_EPOCHS, PrefixIndex
from anbar.route.profile import EngineProfile
from anbar.route.residency import ResidencyLimits

from .builders import BLOCK, batch, cleared, hashes, offloaded, query, removed, stored

STORE = "anbar:s"
TTL_S = 10.0
EPOCH_S = TTL_S / HINT_EPOCHS
ENGINES = [EngineId(name) for name in ("a", "b", "c", "d")]
"""a and b share hashes and the store, with chunks of one and of two blocks; c is alone and has no store, d
not even a host tier."""
PROFILES = {
    ENGINES[0]: EngineProfile("m", BLOCK, chunk_blocks=1, fingerprint="f", stores=frozenset({STORE})),
    ENGINES[1]: EngineProfile("m", BLOCK, chunk_blocks=2, fingerprint="f", stores=frozenset({STORE})),
    ENGINES[2]: EngineProfile("m", BLOCK, chunk_blocks=1),
    ENGINES[3]: EngineProfile("m", BLOCK),
}
SALTS = (None, "s")
PROMPTS = [[1] * 8, [1, 1, 1, 1, 2, 2, 2, 2, 2]]

Holding = tuple[str, Tier, int, EngineHash]


@dataclass
class Naive:
    """Remembers every event and answers by looking through all of it."""

    copies: Counter[Holding] = field(default_factory=Counter)
    expiries: dict[Holding, float] = field(default_factory=dict)
    explained: dict[str, set[EngineHash]] = field(default_factory=dict)
    groups: dict[EngineId, set[int]] = field(default_factory=dict)

    def apply(self, engine: EngineId, event: BlocksStored | BlocksRemoved | AllCleared, now_s: float) -> None:
        if isinstance(event, AllCleared):
            self._drop(engine, {Tier.DEVICE})
            return
        holder = engine
        if event.tier is Tier.SHARED and event.owner in PROFILES[engine].stores:
            holder = EngineId(event.owner)
        if isinstance(event, BlocksRemoved):
            for name in event.hashes:
                holding = (holder, event.tier, event.group, name)
                self.copies[holding] = max(0, self.copies[holding] - 1)
                self.expiries.pop(holding, None)
            return
        known = self.explained.setdefault(space(engine), set())
        if event.tier is Tier.DEVICE:
            if event.parent is not None and event.parent not in known:
                return
            self.groups.setdefault(engine, set()).add(event.group)
            known.update(event.hashes)
        for name in event.hashes:
            holding = (holder, event.tier, event.group, name)
            if event.tier is Tier.SHARED:
                self.copies[holding] = 1
                self.expiries[holding] = (math.floor(now_s / EPOCH_S) + HINT_EPOCHS) * EPOCH_S
            else:
                self.copies[holding] += 1

    def forget(self, engine: EngineId) -> None:
        self._drop(engine, set(Tier))
        self.groups.pop(engine, None)

    def _drop(self, engine: EngineId, tiers: set[Tier]) -> None:
        for holding in list(self.copies):
            if holding[0] == engine and holding[1] in tiers:
                del self.copies[holding]
                self.expiries.pop(holding, None)

    def detach(self, engine: EngineId) -> None:
        self.forget(engine)
        if not PROFILES[engine].fingerprint:
            self.explained.pop(space(engine), None)

    def match(self, engine: EngineId, tokens: list[int], salt: str | None, now_s: float) -> PrefixMatch:
        device = 0
        names = hashes(tokens, 0, len(tokens) // BLOCK, salt=salt)
        while device + BLOCK <= len(tokens) - 1 and self._everywhere(
            engine, names[device // BLOCK], Tier.DEVICE, now_s
        ):
            device += BLOCK
        return self.below(engine, device, tokens, salt, now_s)

    def below(
        self, engine: EngineId, device: int, tokens: list[int], salt: str | None, now_s: float
    ) -> PrefixMatch:
        """What is loaded behind `device` tokens."""
        chunk = BLOCK * PROFILES[engine].chunk_blocks
        if not chunk:
            return PrefixMatch(device, device, device)
        names = hashes(tokens, 0, len(tokens) // BLOCK, salt=salt)

        def reach(present: list[bool]) -> int:
            best = device
            end = (device // chunk + 1) * chunk
            while end <= len(tokens) and present[end // BLOCK - 1]:
                best = end if end - device >= chunk else device
                end += chunk
            return best

        on_host = reach([self._everywhere(engine, name, Tier.HOST, now_s) for name in names])
        return PrefixMatch(device, on_host, reach([self._somewhere(engine, name, now_s) for name in names]))

    def _everywhere(self, engine: EngineId, name: EngineHash, tier: Tier, now_s: float) -> bool:
        groups = self.groups.get(engine, set()) or {0}
        return all(self._held(engine, (engine, tier, group, name), now_s) for group in groups)

    def _somewhere(self, engine: EngineId, name: EngineHash, now_s: float) -> bool:
        groups = self.groups.get(engine, set()) or {0}
        places = [(engine, Tier.HOST), (engine, Tier.SHARED)]
        places += [(EngineId(store), Tier.SHARED) for store in PROFILES[engine].stores]
        return all(
            any(self._held(engine, (who, tier, group, name), now_s) for who, tier in places)
            for group in groups
        )

    def _held(self, engine: EngineId, holding: Holding, now_s: float) -> bool:
        alive = self.expiries.get(holding, now_s + 1) > now_s
        return holding[3] in self.explained.get(space(engine), set()) and self.copies[holding] > 0 and alive


def space(engine: EngineId) -> str:
    return PROFILES[engine].fingerprint or engine


KINDS = ["store", "host", "shared", "remove", "remove host", "remove shared"]
KINDS += ["clear", "forget", "wait", "wait long", "leave", "store again"]
STEPS = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, len(ENGINES) - 1),
    st.integers(0, len(PROMPTS) - 1),
    st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(1, 4)),  # first block, number of blocks
    st.sampled_from([0] * 9 + [1]),  # group
    st.sampled_from([None, None, None, "s"]),  # salt
)
Step = tuple[str, int, int, tuple[int, int], int, str | None]


def events_of(step: Step) -> list[BlocksStored | BlocksRemoved | AllCleared]:
    """What the engine of a step announces."""
    kind, _, prompt, (first, count), group, salt = step
    tokens = PROMPTS[prompt]
    num_blocks = len(tokens) // BLOCK
    blocks = range(min(first, num_blocks - 1), min(first + count, num_blocks))
    owner = STORE if count > 1 else ""
    match kind:
        case "store" | "store again":
            return [stored(tokens, blocks.start, max(blocks.stop, blocks.start + 1), salt=salt, group=group)]
        case "host":
            return [offloaded(tokens, at, Tier.HOST, group=group, salt=salt) for at in reversed(blocks)]
        case "shared":
            return [offloaded(tokens, at, Tier.SHARED, owner=owner, group=group, salt=salt) for at in blocks]
        case "clear":
            return [cleared()]
        case "remove" | "remove host" | "remove shared":
            tier = {"remove": Tier.DEVICE, "remove host": Tier.HOST, "remove shared": Tier.SHARED}[kind]
            return [removed(tokens, at, tier, owner=owner, group=group, salt=salt) for at in blocks[:1]]
    return []


@dataclass
class Both:
    """The index and the model, told the same."""

    index: PrefixIndex
    naive: Naive = field(default_factory=Naive)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        for engine, profile in PROFILES.items():
            self.index.attach(engine, profile)

    def take(self, step: Step) -> None:
        kind, engine = step[0], ENGINES[step[1]]
        match kind:
            case "forget":
                self.index.forget(engine)
                self.naive.forget(engine)
            case "leave":  # and come back
                self.index.detach(engine)
                self.naive.detach(engine)
                self.index.attach(engine, PROFILES[engine])
            case "wait":
                self.now_s += TTL_S / 7
            case "wait long":
                self.now_s += 1.5 * TTL_S
        for event in events_of(step) * (2 if kind == "store again" else 1):
            self.index.apply(engine, batch(event), self.now_s)
            self.naive.apply(engine, event, self.now_s)
        self.index.check_integrity()

    def never_too_much(self) -> None:
        """Nothing is predicted that is not there."""
        for tokens in PROMPTS:
            for salt in SALTS:
                for engine, found in self.index.match(query(tokens, salt=salt), ENGINES, self.now_s).items():
                    assert found.device <= self.naive.match(engine, tokens, salt, self.now_s).device
                    there = self.naive.below(engine, found.device, tokens, salt, self.now_s)
                    assert found.host <= there.host
                    assert found.shared <= there.shared


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=25))
def test_any_history_predicts_as_the_naive_model(steps: list[Step]) -> None:
    """Stores, removals, clears, restarts, departures in any order, repeated, orphaned, children first: after
    each, the index predicts for every engine and prompt what a search through the whole history predicts."""
    both = Both(PrefixIndex(hint_ttl_s=TTL_S))
    for step in steps:
        both.take(step)
        for tokens in PROMPTS:
            for salt in SALTS:
                found = both.index.match(query(tokens, salt=salt), ENGINES, both.now_s)
                assert found == {e: both.naive.match(e, tokens, salt, both.now_s) for e in ENGINES}


LIMITS = st.builds(
    ResidencyLimits, max_blocks=st.integers(1, 8), max_parked=st.integers(0, 2), max_unheld=st.integers(0, 2)
)


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=25), LIMITS)
def test_limits_only_take_away(steps: list[Step], limits: ResidencyLimits) -> None:
    """With room for a few blocks and names only, nothing is predicted that is not there."""
    both = Both(PrefixIndex(hint_ttl_s=TTL_S, limits=limits))
    for step in steps:
        both.take(step)
        assert both.index.stats().num_rows <= limits.max_blocks
        both.never_too_much()


def handed_over(index: PrefixIndex, now_s: float) -> PrefixIndex:
    """What another router makes of this one's snapshots."""
    other = PrefixIndex(hint_ttl_s=TTL_S)
    for engine, profile in PROFILES.items():
        other.attach(engine, profile)
        for _ in other.restore(engine, index.snapshot(engine), now_s):
            other.check_integrity()
    other.check_integrity()
    return other


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=20), st.lists(STEPS, max_size=8))
def test_a_snapshot_hands_over_what_is_believed(before: list[Step], after: list[Step]) -> None:
    """A router that joins late gets the snapshots of one that was there: it predicts the same of devices and
    host memory, and of stores the same or less, since a hint's age is rounded up. Both then hear the same
    events: what the snapshot did not carry, names that nothing holds, is never made up for by too much."""
    both = Both(PrefixIndex(hint_ttl_s=TTL_S))
    for step in before:
        both.take(step)
    both.index = handed_over(both.index, both.now_s)
    for tokens in PROMPTS:
        for salt in SALTS:
            for engine, found in both.index.match(query(tokens, salt=salt), ENGINES, both.now_s).items():
                told = both.naive.match(engine, tokens, salt, both.now_s)
                assert (found.device, found.host) == (told.device, told.host)
                assert found.shared <= told.shared
                assert found.shared == told.shared or any(step[0].startswith("wait") for step in before)
    for step in after:
        both.take(step)
        both.never_too_much()
