"""How much of a prompt an engine will take from its tiers: vLLM's own rule, to the token.

With L prompt tokens, blocks of B tokens and chunks of T = C·B tokens, vLLM 0.32 does this for models without
sliding windows, Mamba layers or draft models:

1. Device: the longest run of cached blocks from the start, at most (L - 1) // B of them, since the last token
   has to be computed for its logits. (`v1/core/kv_cache_manager.py`, `get_computed_blocks`:
   `max_cache_hit_length = request.num_tokens - 1`.)
2. Host and shared, from the end of the device's run D
   (`distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, `_lookup_complete_chunks`):
   nothing if less than one chunk lies between D and the last full chunk's end; else the run of chunks
   present from chunk D // T on, where a chunk is present if its key, the hash of its **last** block, is
   in the host tier or in any secondary one. D may lie inside the first of them, which is then loaded from
   D on. Nothing again if the tokens gained are fewer than T.
3. The load is *not* limited to L - 1: a prompt of whole chunks that are all present is reported as cached
   in full (`v1/core/sched/scheduler.py` sets `prefill_stats` before `_update_waiting_for_remote_kv` takes
   one token back to compute it again).

`cached_tokens` of the answer's usage is the sum (`v1/metrics/stats.py`, `PrefillStats.set`). A request
that asks for prompt logprobs reads no cache at all (`Request.skip_reading_prefix_cache`): its match is
empty.

A block with several cache groups is present where all groups are; for a chunk each group may come from
another tier.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anbar.core.fleet import NO_MATCH, PrefixMatch


class Run(NamedTuple):
    """Neighbouring blocks of a prompt that are in the same places."""

    end: int
    """The number of the first block behind them; they begin where the run before ends, or at 0."""

    mask: int
    """Where they are (`anbar.route.residency`)."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Which bits of a block's residency mask (`anbar.route.residency`) make it present for one engine."""

    device: int
    """All of these: the device holds every group."""

    host: int
    """All of these: the host tier holds every group."""

    any_tier: tuple[int, ...]
    """At least one bit of each: every group is in the host tier or in a store the engine reads."""


def runs_of(masks: Iterable[int]) -> list[Run]:
    """The runs of single blocks' masks."""
    runs: list[Run] = []
    before, end = None, 0
    for mask in masks:
        if mask != before and before is not None:
            runs.append(Run(end, before))
        before, end = mask, end + 1
    if before is not None:
        runs.append(Run(end, before))
    return runs


def may_grow(match: PrefixMatch, num_tokens: int, unit_tokens: int) -> bool:
    """Whether more than `match` may turn out to be cached when more of a prompt is known than its first
    `num_tokens`. `unit_tokens`: a block, or a chunk where there are chunks. A chunk that the match ends
    inside of is of use only together with the next one."""
    num_units = match.total // unit_tokens + (2 if match.total % unit_tokens else 1)
    return num_tokens <= num_units * unit_tokens


def match_device(num_blocks: int, num_tokens: int, block_size: int) -> PrefixMatch:
    """What an engine without tiers will reuse of a prompt of `num_tokens`, whose first `num_blocks` are on
    its device."""
    device = min(num_blocks, max(0, num_tokens - 1) // block_size) * block_size
    return PrefixMatch(device, device, device) if device else NO_MATCH


def match_prefix(
    runs: Sequence[Run], needs: Needs, num_tokens: int, block_size: int, chunk_blocks: int
) -> PrefixMatch:
    """What one engine will reuse of a prompt of `num_tokens`; `runs` are those of its full blocks in
    order."""
    num_blocks = 0
    want = needs.device
    for end, mask in runs:
        if mask & want != want:
            break
        num_blocks = end
    on_device = match_device(num_blocks, num_tokens, block_size)
    if chunk_blocks == 0:
        return on_device
    device = on_device.device

    def on_host(mask: int) -> bool:
        return mask & needs.host == needs.host

    def anywhere(mask: int) -> bool:
        return all(mask & group for group in needs.any_tier)

    chunk_tokens = chunk_blocks * block_size
    first = device // chunk_tokens

    def loaded(present: Callable[[int], bool]) -> int:
        gained = _chunks(runs, present, first, chunk_blocks) * chunk_tokens - device
        return gained if gained >= chunk_tokens else 0

    return PrefixMatch(device, device + loaded(on_host), device + loaded(anywhere))


def _chunks(runs: Sequence[Run], present: Callable[[int], bool], first: int, chunk_blocks: int) -> int:
    """The number of the first chunk from `first` on that is not present; a chunk is, if its last block is."""
    chunk = first
    for end, mask in runs:
        if end < (chunk + 1) * chunk_blocks:
            continue  # it ends before the chunk's last block
        if not present(mask):
            break
        chunk = end // chunk_blocks
    return chunk
