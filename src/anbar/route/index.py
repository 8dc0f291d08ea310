"""The prefix index: which engine would reuse how much of a prompt, kept from the engines' own events.

- Device events carry tokens and extra keys. They are hashed into Anbar's chain, and `engine hash → chain
  hash` is remembered. An event whose parent is unknown (after a gap in the stream) is dropped and
  counted, never guessed.
- Host and storage events carry no extra keys and may name children before parents, so they are resolved
  by the engine's hash alone, among all engines with the same fingerprint; what cannot be resolved is
  parked until a device event explains it. Nothing is ever put on a chain on the strength of an event
  without extra keys.
- A store's blocks belong to the store: they count for every engine that reads from it, outlive the engine
  that announced them, and are hints that expire. A storage event without an owner, or of an owner no
  profile names, counts for its engine alone.

Engines are grouped by what makes their hashes comparable (fingerprint, model, block size); each group has one
`Residency`. Not thread-safe: the router's event loop owns it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from anbar.core.blocks import event_extra, extend_many, root
from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, KvBatch, KvEvent, Tier, Unknown
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import ChainHash, EngineHash, EngineId
from anbar.core.request import RouteQuery
from anbar.route.chains import PromptChains
from anbar.route.match import Needs, Run, match_device, match_prefix
from anbar.route.profile import EngineProfile
from anbar.route.residency import VECTOR_BLOCKS, Residency, ResidencyLimits, Room, hash_key
from anbar.route.slots import Place, Slots
from anbar.route.snapshot import VERSION, EngineSnapshot, HeldPlace, decode, encode, held

SpaceKey = tuple[str, str, int]
"""Fingerprint (or an engine's own name), model, block size."""


NEVER = -1
"""Wanting all bits: no block's mask has them."""

HINT_EPOCHS = 8
"""Steps in which a store's blocks grow old: one lives between 7/8 of the TTL and all of it, and all that were
last announced in one step end together, without a date on each."""


@dataclass(slots=True)
class IndexStats:
    """Counts since the start, and sizes now. Everything here that is not a size should stay near zero."""

    num_blocks: int = 0
    """Distinct blocks that are somewhere."""
    num_parked: int = 0
    """Hashes of host and storage events that wait for a device event to explain them."""
    num_parked_dropped: int = 0
    num_orphans: int = 0
    """Device blocks whose parent was unknown."""
    num_conflicts: int = 0
    """Hashes that stood for other content: a fingerprint is shared by engines that hash differently."""
    num_unknown_removed: int = 0
    num_foreign_block_size: int = 0
    """Device blocks of a cache group with another block size than the profile's: not indexed."""
    num_malformed: int = 0
    """Device events whose tokens or extra keys do not fit their hashes (masked-out blocks)."""
    num_unknown_events: int = 0
    num_refused: int = 0
    """Blocks that there was no room for (`ResidencyLimits.max_blocks`): they are not predicted."""
    num_rows: int = 0
    """Blocks that take memory: those that are somewhere, and names that are remembered for a while."""


@dataclass(slots=True)
class _Space:
    """Engines whose hashes mean the same."""

    residency: Residency
    slots: Slots = field(default_factory=Slots)
    members: set[EngineId] = field(default_factory=set)


@dataclass(slots=True)
class _Member:
    """One engine; `groups` are the cache groups it announced on its device."""

    profile: EngineProfile
    space_key: SpaceKey
    space: _Space
    groups: set[int] = field(default_factory=set)
    needs: tuple[int, int, Needs] | None = None
    """The version of the slots and the number of groups that it was made from, and what it needs."""


class PrefixIndex:
    """See the module's text. `hint_ttl_s`: how long a store's block is believed in without being announced
    again, at most; a hint that is wrong costs one recomputation, one that is missing costs the same."""

    def __init__(
        self,
        *,
        hint_ttl_s: float = 3600.0,
        limits: ResidencyLimits | None = None,
        chains: PromptChains | None = None,
    ) -> None:
        self._epoch_s = hint_ttl_s / HINT_EPOCHS
        self._limits = limits if limits is not None else ResidencyLimits()
        self._room = Room(self._limits.max_blocks)
        self._epoch = 0
        self._chains = chains if chains is not None else PromptChains()
        self._members: dict[EngineId, _Member] = {}
        self._spaces: dict[SpaceKey, _Space] = {}
        self._counts = IndexStats()

    def attach(self, engine: EngineId, profile: EngineProfile) -> None:
        """Begin to index an engine. Attaching it again with an equal profile changes nothing; with another
        one, all that was known of it is dropped first."""
        known = self._members.get(engine)
        if known is not None:
            if known.profile == profile:
                return
            self.detach(engine)
        key = (profile.fingerprint or f"engine:{engine}", profile.model, profile.block_size)
        space = self._spaces.setdefault(key, _Space(Residency(self._limits, self._room)))
        space.members.add(engine)
        self._members[engine] = _Member(profile, key, space)

    def detach(self, engine: EngineId) -> None:
        """Stop indexing an engine; blocks of stores stay for as long as another engine shares its hashes."""
        member = self._members.pop(engine, None)
        if member is None:
            return
        self._clear(engine, member, tuple(Tier))
        member.space.slots.release(engine)
        member.space.members.discard(engine)
        if not member.space.members:
            member.space.residency.release()
            del self._spaces[member.space_key]

    def forget(self, engine: EngineId) -> None:
        """Drop what is believed of an engine's own tiers (it restarted, or its stream has a gap). Takes no
        longer the more it is; the memory comes free during the next `apply`s."""
        member = self._members.get(engine)
        if member is not None:
            self._clear(engine, member, tuple(Tier))
            member.groups.clear()
            member.needs = None

    def apply(self, engine: EngineId, batch: KvBatch, now_s: float) -> None:
        """Take in one batch; raises KeyError for an engine that is not attached."""
        member = self._members[engine]
        self._expire(now_s)
        for event in batch.events:
            self._apply(engine, member, event)
        for space in self._spaces.values():
            space.residency.sweep()

    def match(
        self, query: RouteQuery, engines: Iterable[EngineId], now_s: float
    ) -> dict[EngineId, PrefixMatch]:
        """What each engine would reuse of the prompt (`anbar.route.match` has the rule); engines that are not
        attached are left out. Hashing is done once for all engines with comparable hashes."""
        self._expire(now_s)
        runs: dict[SpaceKey, list[Run]] = {}
        found: dict[EngineId, PrefixMatch] = {}
        for engine in engines:
            member = self._members.get(engine)
            if member is None:
                continue
            profile, residency = member.profile, member.space.residency
            num_tokens = len(query.token_ids)
            needs = _needs_now(engine, member)
            known = runs.get(member.space_key)
            if known is None:
                chain = self._chain(query, member)
                if not profile.chunk_blocks and len(member.space.members) == 1 and len(chain) < VECTOR_BLOCKS:
                    num_blocks = residency.num_leading(chain, needs.device)
                    found[engine] = match_device(num_blocks, num_tokens, profile.block_size)
                    continue
                known = runs[member.space_key] = residency.runs(chain)
            found[engine] = match_prefix(known, needs, num_tokens, profile.block_size, profile.chunk_blocks)
        return found

    def holds(self, engine: EngineId, block: ChainHash) -> bool:
        """Whether the engine's events say that it has this block on its device."""
        member = self._members.get(engine)
        if member is None:
            return False
        want = _needs_now(engine, member).device
        return member.space.residency.mask_of(block) & want == want

    def named(self, engine: EngineId, name: EngineHash) -> ChainHash | None:
        """What a hash of the engine's stands for, as far as is known."""
        member = self._members.get(engine)
        return None if member is None else member.space.residency.chain_of(hash_key(name))

    def chain(self, engine: EngineId, query: RouteQuery) -> list[ChainHash]:
        """The prompt's full blocks on an engine; none when it is not attached."""
        member = self._members.get(engine)
        return [] if member is None else self._chain(query, member)

    def refute_shared(self, engine: EngineId, query: RouteQuery, num_cached: int) -> int:
        """The engine reported `num_cached` tokens for `query`, fewer than predicted from its stores: drop
        their hints beyond that. Returns how many blocks were dropped."""
        member = self._members.get(engine)
        if member is None:
            return 0
        slots = 0
        for owner in (*member.profile.stores, engine):
            slots |= member.space.slots.mask(owner, (Tier.SHARED,))
        beyond = self._chain(query, member)[num_cached // member.profile.block_size :]
        return member.space.residency.refute(beyond, slots)

    def snapshot(self, engine: EngineId) -> bytes:
        """What is believed of an engine's tiers and of the stores it reads, for another router's `restore`;
        raises KeyError for an engine that is not attached. Takes a few milliseconds for a million blocks."""
        member = self._members[engine]
        residency, slots = member.space.residency, member.space.slots
        places = [entry for holder in (engine, *sorted(member.profile.stores)) for entry in slots.of(holder)]
        mask = 0
        for _, _, slot in places:
            mask |= 1 << slot
        keys, chains, rows = residency.rows_in(mask)
        held_places = []
        for (holder, tier, group), epoch, slot in places:
            blocks, copies = residency.within(rows, slot)
            age = self._epoch - epoch if tier is Tier.SHARED else 0
            owner = "" if holder == engine else holder
            packed = blocks.astype("<u4").tobytes()
            held_places.append(HeldPlace(owner, tier, group, age, packed, copies))
        profile = member.profile
        return encode(
            EngineSnapshot(
                version=VERSION,
                model=profile.model,
                block_size=profile.block_size,
                fingerprint=profile.fingerprint,
                groups=sorted(member.groups),
                keys=keys.astype("<u8").tobytes(),
                chains=chains.astype("<u8").tobytes(),
                places=held_places,
            )
        )

    def restore(self, engine: EngineId, data: bytes, now_s: float) -> Iterator[None]:
        """Believe of an attached engine what another router believed of it, and nothing else. Yields now and
        then, so that the caller can let others run; no event of this engine may be applied meanwhile. Ends
        early if the engine is detached. Raises WireError, before anything has changed, if `data` does not
        fit the engine."""
        member = self._members[engine]
        snapshot = decode(data, member.profile)
        self._expire(now_s)
        self.forget(engine)
        member.groups.update(snapshot.groups)
        for place in snapshot.places:
            if place.owner and place.owner not in member.profile.stores:
                continue
            where = (place.owner or engine, place.tier, place.group)
            # An epoch older than it says: a clock's steps differ from router to router.
            epoch = self._epoch - place.age - 1 if place.tier is Tier.SHARED else 0
            if place.tier is Tier.SHARED and epoch <= self._epoch - HINT_EPOCHS:
                continue
            for blocks in held(snapshot, place):
                if self._members.get(engine) is not member:
                    return
                slot = member.space.slots.slot(where, epoch)
                bits = member.space.slots.bits(where)
                for block in blocks:
                    member.space.residency.restore(block.key, block.chain, slot, block.copies, bits)
                yield

    def stats(self) -> IndexStats:
        """A snapshot; sizes are summed over all groups of engines."""
        counts = self._counts
        total = IndexStats(
            num_orphans=counts.num_orphans,
            num_foreign_block_size=counts.num_foreign_block_size,
            num_malformed=counts.num_malformed,
            num_unknown_events=counts.num_unknown_events,
        )
        for space in self._spaces.values():
            total.num_blocks += space.residency.num_blocks
            total.num_parked += space.residency.num_parked
            total.num_parked_dropped += space.residency.num_parked_dropped
            total.num_conflicts += space.residency.num_conflicts
            total.num_unknown_removed += space.residency.num_unknown_removed
            total.num_refused += space.residency.num_refused
            total.num_rows += space.residency.num_rows
        return total

    def check_integrity(self) -> None:
        """Raise AssertionError if the index contradicts itself; for tests, it walks everything."""
        for engine, member in self._members.items():
            assert self._spaces[member.space_key] is member.space, f"{engine} is in a space that is gone"
            assert engine in member.space.members, f"{engine} is not a member of its space"
        for space in self._spaces.values():
            assert space.members, "a space without engines is kept"
            space.residency.check_integrity()

    def _expire(self, now_s: float) -> None:
        """Drop the hints whose time has come."""
        epoch = int(now_s // self._epoch_s)
        if epoch != self._epoch:
            self._epoch = epoch
            for space in self._spaces.values():
                ended = space.slots.ended(Tier.SHARED, epoch - HINT_EPOCHS + 1)
                if ended:
                    space.residency.clear(ended)

    def _apply(self, engine: EngineId, member: _Member, event: KvEvent) -> None:
        match event:
            case BlocksStored(tier=Tier.DEVICE):
                self._device_stored(engine, member, event)
            case BlocksStored():
                self._offload_stored(engine, member, event)
            case BlocksRemoved():
                _removed(engine, member, event)
            case AllCleared():
                self._clear(engine, member, (Tier.DEVICE,))
            case Unknown():
                self._counts.num_unknown_events += 1

    def _device_stored(self, engine: EngineId, member: _Member, event: BlocksStored) -> None:
        num_blocks, block_size = len(event.hashes), member.profile.block_size
        keys = event.extra_keys if event.extra_keys is not None else ((),) * num_blocks
        if event.block_size != block_size:
            self._counts.num_foreign_block_size += num_blocks
            return
        if len(event.token_ids) != num_blocks * block_size or len(keys) != num_blocks:
            self._counts.num_malformed += 1
            return
        residency = member.space.residency
        parent = self._parent(member, event)
        if parent is None:
            self._counts.num_orphans += num_blocks
            return
        member.groups.add(event.group)
        slot = member.space.slots.slot((engine, Tier.DEVICE, event.group))
        chain = extend_many(parent, event.token_ids, block_size, event_extra(keys, event.lora))
        residency.store([hash_key(name) for name in event.hashes], chain, slot)

    def _chain(self, query: RouteQuery, member: _Member) -> list[ChainHash]:
        return self._chains.of(query, member.profile.model, member.profile.block_size)

    def _parent(self, member: _Member, event: BlocksStored) -> ChainHash | None:
        if event.parent is None:
            return root(member.profile.model, event.lora)
        return member.space.residency.chain_of(hash_key(event.parent))

    def _offload_stored(self, engine: EngineId, member: _Member, event: BlocksStored) -> None:
        place = _place(engine, member, event)
        residency, slots = member.space.residency, member.space.slots
        if event.tier is not Tier.SHARED:
            slot = slots.slot(place)
            for engine_hash in event.hashes:
                residency.add(hash_key(engine_hash), slot)
            return
        slot = slots.slot(place, self._epoch)
        older = slots.bits(place) & ~(1 << slot)
        for engine_hash in event.hashes:
            residency.hint(hash_key(engine_hash), slot, older)

    def _clear(self, engine: EngineId, member: _Member, tiers: Iterable[Tier]) -> None:
        mask = member.space.slots.mask(engine, tiers)
        if mask:
            member.space.residency.clear(mask)


def _place(engine: EngineId, member: _Member, event: BlocksStored | BlocksRemoved) -> Place:
    """Where a block is: with a store that the engine's profile names, else with the engine itself."""
    owned = event.tier is Tier.SHARED and event.owner in member.profile.stores
    return event.owner if owned else engine, event.tier, event.group


def _removed(engine: EngineId, member: _Member, event: BlocksRemoved) -> None:
    place = _place(engine, member, event)
    residency, slots = member.space.residency, member.space.slots
    if event.tier is Tier.SHARED:
        bits = slots.bits(place)
        for engine_hash in event.hashes:
            residency.remove_hint(hash_key(engine_hash), bits)
        return
    slot = slots.slot(place)
    for engine_hash in event.hashes:
        residency.remove(hash_key(engine_hash), slot)


def _needs_now(engine: EngineId, member: _Member) -> Needs:
    version, num_groups, made = member.space.slots.version, len(member.groups), member.needs
    if made is not None and made[0] == version and made[1] == num_groups:
        return made[2]
    needs = _needs(engine, member)
    member.needs = version, num_groups, needs
    return needs


def _needs(engine: EngineId, member: _Member) -> Needs:
    bits = member.space.slots.bits
    device = host = 0
    any_tier: list[int] = []
    for group in sorted(member.groups) or [0]:
        on_host = bits((engine, Tier.HOST, group))
        anywhere = on_host | bits((engine, Tier.SHARED, group))
        for owner in member.profile.stores:
            anywhere |= bits((owner, Tier.SHARED, group))
        device |= bits((engine, Tier.DEVICE, group)) or NEVER
        host |= on_host or NEVER
        any_tier.append(anywhere)
    return Needs(device, host, tuple(any_tier))
