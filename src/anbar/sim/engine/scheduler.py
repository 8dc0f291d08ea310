"""Which requests run in a step, and what becomes of them when it ends.

Models vLLM 0.32 `v1/core/sched/scheduler.py` with `KVCacheManager.allocate_slots`, first come first served,
scheduled synchronously (a step is planned when the one before has ended, as on the CPU platform): chunked
prefill under a token budget, prefix hits on the device and below it, preemption of the request that was
admitted last, admission only when the whole prompt fits. Not modelled: priorities, speculative decoding,
encoder inputs, more than one cache group, the limit of adapters in a step (`max_loras`), a limit of long
prompts' pieces (`long_prefill_token_threshold`), prompts that must be computed in one step (chunked prefill
switched off), loads that fail, and a scheduler that is paused.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from anbar.core.errors import RequestError
from anbar.core.ids import RequestId
from anbar.sim.engine.connector import Connector
from anbar.sim.engine.counters import Counters
from anbar.sim.engine.pool import BlockPool
from anbar.sim.engine.request import EngineRequest, Status
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import Output, Piece, Step, StepResult


class _Verdict(Enum):
    """What an attempt to admit a waiting request came to."""

    ADMITTED = "admitted"
    SKIPPED = "skipped"
    """It cannot run now, those behind it may."""
    FULL = "full"
    """No room: nobody behind it is tried either."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What of a waiting request's tokens need not be computed."""

    blocks: list[int]
    """Hit on the device, not held yet."""
    num_external: int
    """Tokens to be loaded from a tier below."""
    num_computed: int
    """Tokens of both, and those loaded by an earlier step."""
    asked_device: bool = False
    asked_tiers: bool = False
    """Neither is asked for a request that comes back from loading."""
    num_remote: int = 0
    """Tokens beyond those of `blocks` that another engine has computed; the last one of a whole prompt is
    computed again."""


class Loading(NamedTuple):
    """Requests by stage of their load (`num_requests_kv_fetch_by_stage`)."""

    waiting_to_start: int = 0
    in_progress: int = 0
    completed_waiting: int = 0


class Scheduler:
    """`schedule()` plans a step, `finish()` ends it; requests come and go at any time, also in between."""

    def __init__(
        self, shape: EngineShape, pool: BlockPool, counters: Counters, connector: Connector | None = None
    ) -> None:
        self._shape = shape
        self._pool = pool
        self._counters = counters
        self._connector = connector
        self._watermark = int(shape.watermark * shape.num_blocks)
        self._requests: dict[RequestId, EngineRequest] = {}
        self._running: list[EngineRequest] = []
        self._waiting: deque[EngineRequest] = deque()
        self._holding: deque[EngineRequest] = deque()
        """Waiting requests that hold blocks, loading or loaded; always tried before the others."""
        self._deferred: set[EngineRequest] = set()
        """Waiting requests that were once passed over for a tier's sake, not for want of room."""
        self._prefilling: set[EngineRequest] = set()
        """Requests that are loading, or have prompt left to compute: loads must leave room for them."""
        self._loaded: set[EngineRequest] = set()
        self._to_load: set[EngineRequest] = set()
        """Waiting requests that there was no room for when their blocks were found in a tier below."""
        self._ended: list[EngineRequest] = []
        """Requests that ended since the last step was planned: what they leave may still be stored."""
        self._is_blocked = False
        """Whoever the last plan left waiting waits for room alone: until something ends, so will the next."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._holding)

    @property
    def num_deferred(self) -> int:
        """Of those that wait: for a tier, not for room (vLLM's `num_skipped_waiting_reqs`)."""
        return len(self._deferred)

    @property
    def loading(self) -> Loading:
        """Waiting requests whose blocks are, or were, to be loaded."""
        num_loads = sum(request.status is Status.LOADING for request in self._holding)
        return Loading(len(self._to_load), num_loads - len(self._loaded), len(self._loaded))

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do, if only to store, or to announce, what ended requests left."""
        if self._running or self._waiting or self._holding:
            return True
        if self._connector is None:
            return bool(self._ended) and self._pool.has_events
        return bool(self._ended or self._requests) or self._connector.has_work

    def rest(self) -> None:
        """There was nothing to do."""
        self._ended.clear()

    @property
    def is_quiet(self) -> bool:
        """Whether the planned step copies nothing, and has changed no cache so far."""
        if self._pool.has_events:
            return False
        return self._connector is None or not (self._connector.is_copying or self._connector.has_events)

    def requests(self) -> list[EngineRequest]:
        """All that have not ended, and those that ended but must keep their blocks until a load is over."""
        return list(self._requests.values())

    def running(self) -> list[EngineRequest]:
        """Requests that run, in the order in which they were admitted."""
        return list(self._running)

    def waiting(self) -> list[EngineRequest]:
        """Requests that load or wait, in the order in which they are tried."""
        return [*self._holding, *self._waiting]

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError when it is empty, cannot fit, or its id is in use."""
        limit = self._shape.max_model_len
        if not 0 < request.num_prompt_tokens <= limit or request.num_answer_tokens < 1:
            raise RequestError(
                f"request {request.id}: {request.num_prompt_tokens} prompt and {request.num_answer_tokens} "
                f"answer tokens; a prompt has 1 to {limit}, an answer at least 1"
            )
        if request.id in self._requests:
            raise RequestError(f"request {request.id} is already in this engine")
        self._requests[request.id] = request
        self._waiting.append(request)
        if self._connector is not None:
            self._connector.open(request)

    def abort(self, request_id: RequestId) -> None:
        """End a request without an answer; nothing is done when it has ended already or was never there.

        Its blocks are free at once, except while a load writes into them.
        """
        request = self._requests.get(request_id)
        if request is None or request.status is Status.ABORTED:
            return
        keeps_blocks = request.status is Status.LOADING and request not in self._loaded
        if request.status is Status.RUNNING:
            self._running.remove(request)
        else:
            (self._holding if request in self._holding else self._waiting).remove(request)
        self._loaded.discard(request)
        request.status = Status.ABORTED
        self._end(request, keeps_blocks=keeps_blocks)

    def schedule(self) -> Step:
        """Plan the next step."""
        step = Step()
        budget = self._schedule_running(step)
        self._is_blocked = not self.num_waiting
        if not step.preempted:
            self._admit(step, budget)
        if self._connector is not None:
            self._connector.plan(step, self._ended)
        self._ended.clear()
        return step

    def finish(self, step: Step) -> StepResult:
        """End a planned step: requests get their tokens, and what it did to the caches is announced."""
        outputs: list[Output] = []
        ended: list[EngineRequest] = []
        count, max_len = step.num_repeats, self._shape.max_model_len
        for piece in step.pieces:
            request = piece.request
            num_tokens = request.num_prompt_tokens + request.num_generated
            if request.num_computed < num_tokens or request.status is not Status.RUNNING:
                continue  # there is prompt left to compute, or it was aborted meanwhile
            if not request.num_generated:
                self._counters.count_prompt(request)
            request.num_generated += count
            is_over = request.num_generated >= request.num_answer_tokens or num_tokens + count >= max_len
            outputs.append(Output(request, count, is_over))
            if is_over:
                ended.append(request)
        self._counters.num_generated += len(outputs) * count
        for request in ended:
            request.status = Status.FINISHED
            self._end(request)
        if len(ended) == 1:
            self._running.remove(ended[0])
        elif ended:
            self._running = [request for request in self._running if request.status is Status.RUNNING]
        events = self._pool.take_events()
        if self._connector is not None:
            self._finish_loads(self._connector.finish())
            events += self._connector.take_events()
        return StepResult(tuple(outputs), tuple(events))

    def max_repeats(self, step: Step, *, storing: bool = False) -> int:
        """How many steps like the planned one follow each other, it included, with nothing in between that
        anybody could see: no admission, no block filled, nobody ready before the last of them. `storing`:
        chunks may be stored on the shared tier meanwhile."""
        if not (self._is_blocked and step.pieces) or self._pool.has_events:
            return 1
        connector = self._connector
        is_still = connector is None or not (connector.has_work or connector.has_events)
        if not (is_still or (storing and connector is not None and connector.is_only_storing)):
            return 1
        block_size, max_len = self._shape.block_size, self._shape.max_model_len
        most = max_len
        for piece in step.pieces:
            request = piece.request
            num_tokens = request.num_tokens
            if piece.num_new > 1 or request.num_computed < num_tokens:
                return 1
            left = min(request.num_answer_tokens - request.num_generated, max_len - num_tokens)
            most = min(most, left, block_size - 1 - piece.num_before % block_size)
        return most

    def repeat(self, step: Step, count: int) -> None:
        """Make a planned step a stride of `count`, which `max_repeats` allowed."""
        step.num_repeats = count
        for piece in step.pieces:
            piece.request.num_computed += count - 1

    def clear_cache(self, *, preempts: bool, tiers: bool) -> bool:
        """Between steps: see `Engine.clear_cache`."""
        while preempts and self._running:
            self._preempt(self._running.pop())
        cleared = self._pool.clear()
        if tiers and self._connector is not None and (cleared or not preempts):
            self._connector.clear()
        return cleared

    def check_integrity(self) -> None:
        """AssertionError unless queues, states and blocks agree."""
        self._pool.check_integrity(self._requests.values())
        if self._connector is not None:
            self._connector.check_integrity()
        queued = [*self._running, *self._waiting, *self._holding]
        assert len(set(queued)) == len(queued), "a request is queued twice"
        for request in self._requests.values():
            assert (request in queued) == (request.status is not Status.ABORTED), "queued and ended"
            assert len(request.blocks) * self._shape.block_size >= request.num_computed, (
                "tokens without block"
            )
        assert all(request.status is Status.RUNNING for request in self._running)
        assert all(request.num_computed and request.blocks for request in (*self._running, *self._holding))
        assert not any(request.num_computed or request.blocks for request in self._waiting)
        assert self._deferred <= {*self._waiting, *self._holding}, "deferred, but not waiting"
        assert len(self._running) <= self._shape.max_num_seqs

    def _schedule_running(self, step: Step) -> int:
        """Plan the running requests, first admitted first; returns the tokens left of the budget."""
        budget = self._shape.max_num_batched_tokens
        block_size = self._shape.block_size
        running, pieces, prefilling = self._running, step.pieces, self._prefilling
        index = 0
        while index < len(running) and budget:
            request = running[index]
            before = request.num_computed
            num_new = request.num_prompt_tokens + request.num_generated - before
            if num_new > budget:
                num_new = budget
            elif prefilling:
                prefilling.discard(request)
            after = before + num_new
            if after > len(request.blocks) * block_size and not self._grow(request, after, step):
                break
            if after // block_size > request.num_keyed:
                self._pool.cache(request, after // block_size)
            request.num_computed = after
            pieces.append(Piece(request, before, num_new))
            budget -= num_new
            index += 1
        return budget

    def _grow(self, request: EngineRequest, num_tokens: int, step: Step) -> bool:
        """Blocks for `num_tokens` tokens of a running request, preempting from the end of the queue; False
        when it was preempted itself."""
        count = self._blocks_for(num_tokens) - len(request.blocks)
        while count > self._pool.num_free:
            victim = self._running.pop()
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        request.blocks += self._pool.take(count)
        return True

    def _preempt(self, request: EngineRequest) -> None:
        self._free(request)
        request.status = Status.PREEMPTED
        request.num_computed = 0
        request.num_preemptions += 1
        self._counters.num_preemptions += 1
        self._waiting.appendleft(request)

    def _admit(self, step: Step, budget: int) -> None:
        skipped: list[EngineRequest] = []
        skipped_holding: list[EngineRequest] = []
        self._is_blocked = True
        while budget and len(self._running) < self._shape.max_num_seqs:
            queue = self._holding or self._waiting
            if not queue:
                break
            request = queue[0]
            verdict = self._try(request, step, budget)
            if verdict is _Verdict.FULL:
                break
            queue.popleft()
            if verdict is _Verdict.ADMITTED:
                step.num_admitted += 1
                budget -= step.pieces[-1].num_new
            else:
                self._deferred.add(request)
                (skipped_holding if request.num_computed else skipped).append(request)
        self._is_blocked = not skipped and not skipped_holding
        self._holding.extendleft(reversed(skipped_holding))
        self._waiting.extendleft(reversed(skipped))

    def _try(self, request: EngineRequest, step: Step, budget: int) -> _Verdict:
        """Admit the request at the head of a queue to the step, or start its load."""
        if request.status is Status.LOADING:
            if request not in self._loaded:
                return _Verdict.SKIPPED
            self._end_loading(request)
        found = self._find(request)
        if found is None:
            return _Verdict.SKIPPED
        loads = found.num_external > 0
        num_new = 0 if loads else min(request.num_tokens - found.num_computed, budget)
        (self._to_load.add if loads else self._to_load.discard)(request)
        if not self._fits(request, found, num_new):
            return _Verdict.FULL
        num_local = len(found.blocks) * self._shape.block_size
        self._allocate(request, found, num_new)
        if not request.num_preemptions:
            self._count_lookup(request, found)
        else:
            self._counters.num_recovered_device += num_local
            self._counters.num_recovered_external += found.num_external
        request.num_computed = found.num_computed + num_new
        if loads or request.num_computed < request.num_tokens:
            self._prefilling.add(request)
        else:
            self._prefilling.discard(request)
        if loads:
            self._to_load.discard(request)
            request.status = Status.LOADING
            return _Verdict.SKIPPED
        request.status = Status.RUNNING
        self._deferred.discard(request)
        self._running.append(request)
        step.pieces.append(Piece(request, found.num_computed, num_new))
        return _Verdict.ADMITTED

    def _find(self, request: EngineRequest) -> _Found | None:
        """What of a waiting request is cached; None when a tier needs more time to say."""
        if request.num_computed:
            return _Found([], 0, request.num_computed)
        block_size = self._shape.block_size
        blocks: list[int] = []
        asks_device = self._shape.prefix_caching and request.reads_cache
        if asks_device:
            # The last token is always computed: its logits are wanted.
            blocks = self._pool.find(request.keys.first((request.num_tokens - 1) // block_size))
        num_local, num_external = len(blocks) * block_size, 0
        num_remote = 0 if request.num_preemptions else request.num_remote_tokens - num_local
        if num_remote > 0:
            request.num_device_hit, request.num_external_hit = num_local, num_remote
            num_computed = min(request.num_remote_tokens, request.num_tokens - 1)
            return _Found(blocks, 0, num_computed, asks_device, asked_tiers=True, num_remote=num_remote)
        if self._connector is not None:
            matched = self._connector.match(request, num_local)
            if matched is None:
                return None
            num_external = matched
        if not request.num_preemptions:
            request.num_device_hit, request.num_external_hit = num_local, num_external
        return _Found(
            blocks, num_external, num_local + num_external, asks_device, self._connector is not None
        )

    def _count_lookup(self, request: EngineRequest, found: _Found) -> None:
        """Of a request that is admitted, or starts to load, for the first time."""
        counters, num_external = self._counters, found.num_external
        num_local = request.num_device_hit
        if found.asked_device:
            counters.num_prefix_queries += request.num_tokens
            counters.num_prefix_hits += num_local
        if found.asked_tiers:
            counters.num_external_queries += request.num_tokens - num_local
            counters.num_external_hits += num_external + found.num_remote
        if num_external and self._connector is not None:
            request.num_shared_hit = self._connector.num_shared(request, num_local, num_external)
            counters.num_shared_hits += request.num_shared_hit

    def _fits(self, request: EngineRequest, found: _Found, num_new: int) -> bool:
        num_held = len(request.blocks) + len(found.blocks)
        num_revived = self._pool.num_free_among(found.blocks)
        num_free = self._pool.num_free - num_revived - (self._watermark if self._running else 0)
        if self._shape.reserve_full_prompt:
            longest = min(request.num_tokens, self._shape.max_model_len)
            if max(self._blocks_for(longest) - num_held, 0) > num_free:
                return False
        # A load holds its blocks without getting on, and is never preempted: it must not take what those
        # that prefill now will need.
        reserved = sum(map(self._blocks_missing, self._prefilling)) if found.num_external else 0
        return max(self._blocks_for(found.num_computed + num_new) - num_held, 0) <= num_free - reserved

    def _allocate(self, request: EngineRequest, found: _Found, num_new: int) -> None:
        num_local = len(found.blocks)
        if num_local:
            self._pool.hold(found.blocks)
            request.blocks = found.blocks
            request.num_keyed = num_local
        num_tokens = found.num_computed + num_new
        count = self._blocks_for(num_tokens) - len(request.blocks)
        if count > 0:
            request.blocks += self._pool.take(count)
        if not found.num_external:
            self._pool.cache(request, num_tokens // self._shape.block_size)
        elif self._connector is not None:
            self._connector.load(request, num_local, found.num_external)

    def _end_loading(self, request: EngineRequest) -> None:
        """What was loaded can be hit now; the last token of a prompt loaded whole is computed again."""
        self._loaded.remove(request)
        self._pool.cache(request, request.num_computed // self._shape.block_size)
        if request.num_computed == request.num_tokens:
            request.num_computed -= 1
        request.status = Status.PREEMPTED if request.num_preemptions else Status.WAITING

    def _finish_loads(self, requests: list[EngineRequest]) -> None:
        for request in requests:
            if request.status is Status.LOADING:
                self._loaded.add(request)
            else:
                self._free(request)
                del self._requests[request.id]

    def _end(self, request: EngineRequest, *, keeps_blocks: bool = False) -> None:
        if self._connector is not None:
            self._connector.close(request)
        self._ended.append(request)
        self._deferred.discard(request)
        self._to_load.discard(request)
        self._prefilling.discard(request)
        if not keeps_blocks:
            self._free(request)
            del self._requests[request.id]

    def _free(self, request: EngineRequest) -> None:
        """The end of a prefix goes before its beginning."""
        self._prefilling.discard(request)
        self._pool.release(reversed(request.blocks))
        request.blocks = []
        request.num_keyed = 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._shape.block_size)

    def _blocks_missing(self, request: EngineRequest) -> int:
        longest = min(request.num_tokens, self._shape.max_model_len)
        return max(self._blocks_for(longest) - len(request.blocks), 0)
