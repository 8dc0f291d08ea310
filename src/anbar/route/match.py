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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anbar.core.fleet import PrefixMatch


@dataclass(frozen=True, slots=True)
class Needs:
    """Which bits of a block's residency mask (`anbar.route.residency`) make it present for one engine."""

    device: int
    """All of these: the device holds every group."""

    host: int
    """All of these: the host tier holds every group."""

    any_tier: tuple[int, ...]
    """At least one bit of each: every group is in the host tier or in a store the engine reads."""


def match_prefix(
    masks: Sequence[int], needs: Needs, num_tokens: int, block_size: int, chunk_blocks: int
) -> PrefixMatch:
    """What one engine will reuse of a prompt of `num_tokens`; `masks` are those of its full blocks in
    order."""
    device = 0
    want = needs.device
    for mask in masks[: max(0, num_tokens - 1) // block_size]:
        if mask & want != want:
            break
        device += block_size
    if chunk_blocks == 0:
        return PrefixMatch(device, device, device)

    def on_host(mask: int) -> bool:
        return mask & needs.host == needs.host

    def anywhere(mask: int) -> bool:
        return all(mask & group for group in needs.any_tier)

    ends = masks[chunk_blocks - 1 :: chunk_blocks]
    chunk_tokens = chunk_blocks * block_size
    host = device + _loaded(ends, on_host, device, chunk_tokens)
    return PrefixMatch(device, host, device + _loaded(ends, anywhere, device, chunk_tokens))


def _loaded(ends: Sequence[int], present: Callable[[int], bool], device: int, chunk_tokens: int) -> int:
    """Tokens loaded behind `device` tokens; `ends` are the masks of the last blocks of the full chunks."""
    end = device // chunk_tokens
    while end < len(ends) and present(ends[end]):
        end += 1
    gained = end * chunk_tokens - device
    return gained if gained >= chunk_tokens else 0
