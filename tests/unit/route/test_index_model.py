"""The prefix index against a naive model: any history of events, the same predictions."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, Tier
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import EngineHash, EngineId
from anbar.route.index import PrefixIndex
from anbar.route.profile import EngineProfile

from .builders import BLOCK, batch, cleared, hashes, offloaded, query, removed, stored

STORE = "anbar:s"
TTL_S = 10.0
ENGINES = [EngineId(name) for name in ("a", "b", "c")]
"""a and b share hashes and the store, with chunks of one and of two blocks; c is alone and has no store."""
PROFILES = {
    ENGINES[0]: EngineProfile("m", BLOCK, chunk_blocks=1, fingerprint="f", stores=frozenset({STORE})),
    ENGINES[1]: EngineProfile("m", BLOCK, chunk_blocks=2, fingerprint="f", stores=frozenset({STORE})),
    ENGINES[2]: EngineProfile("m", BLOCK, chunk_blocks=1),
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
                self.expiries[holding] = now_s + TTL_S
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

    def match(self, engine: EngineId, tokens: list[int], salt: str | None, now_s: float) -> PrefixMatch:
        profile = PROFILES[engine]
        names = hashes(tokens, 0, len(tokens) // BLOCK, salt=salt)
        groups = self.groups.get(engine, set()) or {0}
        known = self.explained.get(space(engine), set())

        def held(holder: str, tier: Tier, group: int, name: EngineHash) -> bool:
            holding = (holder, tier, group, name)
            alive = self.expiries.get(holding, now_s + 1) > now_s
            return name in known and self.copies[holding] > 0 and alive

        def everywhere(name: EngineHash, tier: Tier) -> bool:
            return all(held(engine, tier, group, name) for group in groups)

        def somewhere(name: EngineHash) -> bool:
            places = [(engine, Tier.HOST), (engine, Tier.SHARED)]
            places += [(EngineId(store), Tier.SHARED) for store in profile.stores]
            return all(any(held(who, tier, group, name) for who, tier in places) for group in groups)

        device = 0
        while device + BLOCK <= len(tokens) - 1 and everywhere(names[device // BLOCK], Tier.DEVICE):
            device += BLOCK
        chunk = BLOCK * profile.chunk_blocks

        def reach(present: list[bool]) -> int:
            best = device
            end = (device // chunk + 1) * chunk
            while end <= len(tokens) and present[end // BLOCK - 1]:
                best = end if end - device >= chunk else device
                end += chunk
            return best

        on_host = reach([everywhere(name, Tier.HOST) for name in names])
        return PrefixMatch(device, on_host, reach([somewhere(name) for name in names]))


def space(engine: EngineId) -> str:
    return PROFILES[engine].fingerprint or engine


KINDS = ["store", "host", "shared", "remove", "remove host", "remove shared", "clear", "forget", "wait"]
STEPS = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 2),  # engine
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
        case "store":
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


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=25))
def test_any_history_predicts_as_the_naive_model(steps: list[Step]) -> None:
    """Stores, removals, clears and restarts in any order, repeated, orphaned, children first: after each, the
    index predicts for every engine and prompt what a search through the whole history predicts."""
    index, naive, now_s = PrefixIndex(hint_ttl_s=TTL_S), Naive(), 0.0
    for engine, profile in PROFILES.items():
        index.attach(engine, profile)
    for step in steps:
        kind, engine = step[0], ENGINES[step[1]]
        if kind == "forget":
            index.forget(engine)
            naive.forget(engine)
        if kind == "wait":
            now_s += TTL_S / 2
        for event in events_of(step):
            index.apply(engine, batch(event), now_s)
            naive.apply(engine, event, now_s)
        index.check_integrity()
        for tokens in PROMPTS:
            for salt in SALTS:
                found = index.match(query(tokens, salt=salt), ENGINES, now_s)
                assert found == {e: naive.match(e, tokens, salt, now_s) for e in ENGINES}
