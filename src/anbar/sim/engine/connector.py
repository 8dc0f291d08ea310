"""What joins the scheduler with the tiers below the device: vLLM's offloading connector.

Models vLLM 0.32 `distributed/kv_transfer/kv_connector/v1/offloading/{scheduler,worker}.py` for one
full-attention group, with a copy worker that is done when a copy is submitted (as Anbar's on the CPU
platform). A step's loads are copied in that step and its requests can run in the next one; what a step
computes is stored at the start of the next one, or in the same step when the blocks of an ended request are
given away in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anbar.core.cost import PrefillWork
from anbar.core.ids import RequestId
from anbar.sim.engine.counters import Counters
from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.host import Found, HostTier
from anbar.sim.engine.request import BlockKey, EngineRequest, Status
from anbar.sim.engine.shape import EngineShape, HostShape, Offload
from anbar.sim.engine.shared import SharedLink, SharedTier
from anbar.sim.engine.step import Piece, Step
from anbar.sim.engine.tier_work import Asked, TierWork


@dataclass(eq=False, slots=True)
class _Offload:
    """What the connector knows of a request."""

    request: EngineRequest
    num_chunks_seen: int = 0
    """Leading chunks that need not be offered any more: stored, loaded or there."""
    num_copies: int = 0
    used: set[BlockKey] = field(default_factory=set)
    fetched: set[BlockKey] = field(default_factory=set)
    """Chunks that the shared tier was asked for, for this request."""
    blocks: list[int] = field(default_factory=list)
    """The blocks that it had when it ended."""
    is_over: bool = False
    asked_host: Asked = field(default_factory=dict)
    asked_shared: Asked = field(default_factory=dict)
    has_run: bool = False
    unknown_since_s: float | None = None
    """When a lookup first gave no answer; None: the last one gave one."""


@dataclass(eq=False, slots=True)
class Copy:
    """A copy of some chunks of a request between device and host."""

    offload: _Offload
    keys: list[BlockKey]
    """Of the chunks, in the prompt's order."""
    num_tokens: int
    ends: list[int] = field(default_factory=list)
    """The tokens of the prompt at which they end; only of stores."""

    @property
    def request(self) -> EngineRequest:
        """Whose KV is copied."""
        return self.offload.request


class Connector:
    """Plans the copies of a step, and settles them when it ends."""

    def __init__(
        self, shape: EngineShape, host: HostShape, counters: Counters, shared: SharedTier | None = None
    ) -> None:
        """Raises ConfigError when the host tier holds nothing."""
        self._shape = shape
        self._chunk_blocks = host.chunk_blocks
        self._chunk_tokens = host.chunk_blocks * shape.block_size
        self._prompt_only = host.offload is Offload.PROMPT
        self.host = HostTier(host.num_chunks)
        self.link: SharedLink | None = None
        if shared is not None:
            chunk_bytes = self._chunk_tokens * shape.kv_bytes_per_token
            self.link = SharedLink(shared, self.host, chunk_bytes, self._chunk_tokens)
        self._counters = counters
        self._offloads: dict[RequestId, _Offload] = {}
        self._behind: set[_Offload] = set()
        """Whose last offer was refused: they offer again in the next step."""
        self.loads: list[Copy] = []
        """Copied in this step."""
        self.stores: list[Copy] = []
        """Planned in this step, to be copied in the next one."""
        self.copying: list[Copy] = []
        """Stores that are copied in this step."""
        self._loading: set[BlockKey] = set()
        self._given_away: set[int] = set()
        """Blocks that requests got when they started to load in this step."""
        self._work = TierWork()
        self._now_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether steps must go on although no request needs any."""
        return self.is_copying or (self.link is not None and self.link.has_work)

    @property
    def is_copying(self) -> bool:
        """Whether a copy between device and host is planned or under way."""
        return bool(self.loads or self.stores or self.copying)

    @property
    def is_only_storing(self) -> bool:
        """Whether nothing is under way but stores on the shared tier, which may be looked at later."""
        is_idle = not (self.is_copying or self._behind or self.host.has_events)
        return is_idle and self.link is not None and self.link.is_only_storing

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would give any."""
        return self.host.has_events or (self.link is not None and self.link.has_events)

    def set_time(self, now_s: float) -> None:
        """It is `now_s`."""
        self._now_s = now_s
        if self.link is not None:
            self.link.set_time(now_s)

    def open(self, request: EngineRequest) -> None:
        """A request came."""
        self._offloads[request.id] = _Offload(request)
        if self.link is not None:
            self.link.open(request)

    def match(self, request: EngineRequest, num_local: int) -> int | None:
        """How many tokens after `num_local` can be loaded; None: ask again in the next step."""
        offload = self._offloads[request.id]
        if not request.reads_cache:
            return 0
        if offload.num_copies:
            return None
        num_tokens = self._match(offload, num_local)
        self._work.num_lookups += 1
        if num_tokens is not None:
            self._note_delay(offload)
        elif offload.unknown_since_s is None:
            offload.unknown_since_s = self._now_s
        return num_tokens

    def _match(self, offload: _Offload, num_local: int) -> int | None:
        request, size = offload.request, self._chunk_tokens
        limit = request.num_tokens
        if request.max_load_tokens is not None:
            limit = min(limit, num_local + request.max_load_tokens)
        end = limit // size
        if end * size - num_local < size:
            return 0
        start = num_local // size
        keys = self._keys(request, start, end)
        num_hits = self._num_hits(offload, keys, start)
        if num_hits is None:
            return None
        num_tokens = (start + num_hits) * size - num_local
        if not num_hits or num_tokens < size:
            return 0
        if self._shape.prefix_caching and not self._loading.isdisjoint(keys[:num_hits]):
            return None  # in a step or two they will be on the device
        return num_tokens

    def load(self, request: EngineRequest, num_local_blocks: int, num_tokens: int) -> None:
        """Load what was matched into the request's blocks, which have been taken."""
        offload = self._offloads[request.id]
        end = (num_local_blocks * self._shape.block_size + num_tokens) // self._chunk_tokens
        keys = self._keys(request, num_local_blocks // self._chunk_blocks, end)
        self.host.pin(keys)
        self._loading.update(keys)
        self._given_away.update(request.blocks)
        offload.used.update(keys)
        offload.num_chunks_seen = end
        self._start(Copy(offload, keys, num_tokens), self.loads)

    def num_shared(self, request: EngineRequest, num_local: int, num_tokens: int) -> int:
        """How many of the `num_tokens` matched after `num_local` come from the shared tier."""
        fetched, size = self._offloads[request.id].fetched, self._chunk_tokens
        if not fetched:
            return 0
        start = num_local // size
        keys = self._keys(request, start, (num_local + num_tokens) // size)
        num_shared = size * sum(key in fetched for key in keys)
        return num_shared - num_local % size if keys[0] in fetched else num_shared

    def plan(self, step: Step, ended: Sequence[EngineRequest]) -> None:
        """The step is planned, and `ended` have ended since the last one: say what it copies."""
        if self.link is not None:
            self.link.end_plan(step.preempted)
            self.link.steps.scheduled(*_work(step))
        self.copying, self.stores = self.stores, []
        num_running = len(step.pieces) - step.num_admitted
        size = self._chunk_tokens
        for index, piece in enumerate(step.pieces):
            after = piece.num_before + piece.num_new
            if index >= num_running:
                self._offloads[piece.request.id].has_run = True
            is_due = after // size > piece.num_before // size or index >= num_running
            if is_due or self._behind:
                self._offer(self._offloads[piece.request.id], after)
        leaving = [offload for request in ended if (offload := self._offloads.get(request.id)) is not None
                   and offload.request is request]  # fmt: skip
        last = [copy for offload in leaving if (copy := self._offer_last(offload)) is not None]
        if last:
            self._hurry(last, self._blocks_given(step))
        for offload in leaving:
            self._close(offload)
        self._given_away.clear()
        self._account(step)

    def finish(self) -> list[EngineRequest]:
        """The step is over: the requests whose loads are over too."""
        stores, self.copying = self.copying, []
        loads, self.loads = self.loads, []
        if self.link is not None:
            self.link.steps.ended()
        for copy in stores:
            self.host.written(copy.keys)
            if self.link is not None:
                self.link.store(copy.request, copy.keys, copy.ends)
            self._end(copy)
        for copy in loads:
            self.host.unpin(copy.keys)
            self._loading.difference_update(copy.keys)
            self._end(copy)
        return [copy.request for copy in loads]

    def close(self, request: EngineRequest) -> None:
        """A request ended; its blocks are still its own."""
        self._offloads[request.id].blocks = request.blocks

    def clear(self) -> None:
        """Between steps: forget what host RAM holds, and what was to be copied there. Nothing is announced.
        Requests that run offer all of theirs again."""
        self.stores.clear()
        for offload in list(self._offloads.values()):
            if offload.request.status in (Status.FINISHED, Status.ABORTED):
                self._behind.discard(offload)
                del self._offloads[offload.request.id]
                continue
            offload.num_chunks_seen = offload.num_copies = 0
            offload.used.clear()
            offload.fetched.clear()
            self._behind.add(offload)
        if self.link is not None:
            self.link.clear()
        self.host.clear()

    def take_events(self) -> list[EngineEvent]:
        """What happened to the tiers since the last call."""
        events = self.host.take_events()
        return events + self.link.take_events() if self.link is not None else events

    def check_integrity(self) -> None:
        """AssertionError unless copies, requests and chunks agree."""
        copies = [*self.loads, *self.stores, *self.copying]
        for offload in self._offloads.values():
            assert offload.num_copies == sum(copy.offload is offload for copy in copies), "copies miscounted"
        assert self._loading == {key for copy in self.loads for key in copy.keys}
        self.host.check_integrity()
        if self.link is not None:
            self.link.check_integrity()

    def _keys(self, request: EngineRequest, start: int, end: int) -> list[BlockKey]:
        """Keys of chunks start..end of a request; a chunk has the key of its last block."""
        size = self._chunk_blocks
        return list(request.keys.first(end * size)[start * size + size - 1 :: size])

    def _num_hits(self, offload: _Offload, keys: Sequence[BlockKey], start: int) -> int | None:
        """Leading chunks that are there, of which the first is number `start` of the prompt; None when that
        is not certain yet. All are asked for up to the first that is missing, so that the shared tier begins
        to fetch them."""
        if self.link is not None:
            self.link.poll()
        num_hits, is_certain = 0, True
        for key in keys:
            found = self.host.lookup(key)
            if not offload.has_run and found is not Found.COMING:
                is_hit = found is Found.HIT
                self._work.host.note(offload.asked_host, key, hit=is_hit, now_s=self._now_s)
            if found is Found.MISS and self.link is not None and offload.request.loads_shared:
                end_token = (start + num_hits + 1) * self._chunk_tokens
                found = self._lookup_shared(self.link, offload, key, end_token)
            if found is Found.MISS:
                break
            num_hits += 1
            is_certain = is_certain and found is Found.HIT
        return num_hits if is_certain else None

    def _lookup_shared(self, link: SharedLink, offload: _Offload, key: BlockKey, end_token: int) -> Found:
        offload.fetched.discard(key)
        asked = None if offload.has_run else offload.asked_shared
        found = link.lookup(offload.request, key, end_token, offload.used, self._work, asked)
        if found is Found.COMING:
            offload.fetched.add(key)
        return found

    def _note_delay(self, offload: _Offload) -> None:
        if offload.unknown_since_s is not None:
            self._work.delays_s.append(self._now_s - offload.unknown_since_s)
            offload.unknown_since_s = None

    def _offer(self, offload: _Offload, num_tokens: int) -> Copy | None:
        """Store what is new of the first `num_tokens` tokens of a request."""
        request = offload.request
        num_tokens = min(num_tokens, request.num_tokens)
        if request.max_offload_tokens is not None:
            num_tokens = min(num_tokens, request.max_offload_tokens)
        if self._prompt_only:
            num_tokens = min(num_tokens, request.num_prompt_tokens)
        start, end = offload.num_chunks_seen, num_tokens // self._chunk_tokens
        if end <= start:
            return None
        if self.link is not None:
            self.link.poll()
        keys = self._keys(request, start, end)
        new = self.host.reserve(keys, offload.used)
        if new is None:
            self._work.num_refused += 1
            self._behind.add(offload)
            return None
        self._behind.discard(offload)
        offload.num_chunks_seen = end
        if not new:
            return None
        size, missing = self._chunk_tokens, set(new)
        ends = [(start + i + 1) * size for i, key in enumerate(keys) if key in missing]
        return self._start(Copy(offload, new, len(new) * size, ends), self.stores)

    def _offer_last(self, offload: _Offload) -> Copy | None:
        """Store what an ended request has left."""
        request = offload.request
        is_aborted = request.status is Status.ABORTED
        num_tokens = request.num_computed if is_aborted else request.num_tokens - 1
        return self._offer(offload, min(num_tokens, len(offload.blocks) * self._shape.block_size))

    def _hurry(self, stores: Sequence[Copy], given: set[int]) -> None:
        """The blocks of ended requests are free: of these, what was given away is copied before the step
        computes."""
        size = self._chunk_blocks
        for store in stores:
            offload, stored = store.offload, set(store.keys)
            keys = self._keys(store.request, 0, offload.num_chunks_seen)
            chunks = [i for i, key in enumerate(keys) if key in stored]
            blocks = [block for i in chunks for block in offload.blocks[i * size : (i + 1) * size]]
            if not given.isdisjoint(blocks):
                self.stores.remove(store)
                self.copying.append(store)

    def _blocks_given(self, step: Step) -> set[int]:
        """Blocks that requests got in this step, also those that they share."""
        given = set(self._given_away)
        num_running = len(step.pieces) - step.num_admitted
        for index, piece in enumerate(step.pieces):
            blocks = piece.request.blocks
            given.update(blocks if index >= num_running else blocks[self._num_blocks_before(piece) :])
        return given

    def _num_blocks_before(self, piece: Piece) -> int:
        return -(-piece.num_before // self._shape.block_size)

    def _close(self, offload: _Offload) -> None:
        request = offload.request
        offload.is_over = True
        self._note_delay(offload)
        self._behind.discard(offload)
        end = request.num_tokens // self._chunk_tokens
        used = [key for key in self._keys(request, 0, end) if key in offload.used]
        self.host.refresh(reversed(used))
        self._forget_if_done(offload)

    def _start(self, copy: Copy, copies: list[Copy]) -> Copy:
        copy.offload.num_copies += 1
        copies.append(copy)
        return copy

    def _end(self, copy: Copy) -> None:
        copy.offload.num_copies -= 1
        self._forget_if_done(copy.offload)

    def _forget_if_done(self, offload: _Offload) -> None:
        if offload.is_over and not offload.num_copies and self._offloads.get(offload.request.id) is offload:
            del self._offloads[offload.request.id]
            if self.link is not None:
                self.link.close(offload.request)

    def _account(self, step: Step) -> None:
        """Copies of this step. The KV of a block lies in `copies_per_block` pieces."""
        block_size, pieces = self._shape.block_size, self._shape.copies_per_block
        step.num_loaded_tokens = sum(copy.num_tokens for copy in self.loads)
        step.num_stored_tokens = sum(copy.num_tokens for copy in self.copying)
        step.num_load_copies = step.num_loaded_tokens // block_size * pieces
        step.num_store_copies = step.num_stored_tokens // block_size * pieces
        work, self._work = self._work, TierWork()
        work.loads = [copy.num_tokens for copy in self.loads]
        work.stores = [copy.num_tokens for copy in self.copying]
        work.allocations = self.host.take_allocations()
        if self.link is not None:
            work.moves = self.link.take_moves()
        step.tier_work = work
        self._counters.num_loaded += step.num_loaded_tokens
        self._counters.num_stored += step.num_stored_tokens


def _work(step: Step) -> tuple[PrefillWork, int]:
    """What a step computes of prompts, and how many answers run beside, as the plugin tells its tier. One
    token is an answer's."""
    num_tokens = num_pairs = num_answers = 0
    for piece in step.pieces:
        new, before = piece.num_new, piece.num_before
        if new == 1:
            num_answers += 1
        else:
            num_tokens += new
            num_pairs += new * (new + 2 * before)
    return PrefillWork(num_tokens, num_pairs), num_answers
