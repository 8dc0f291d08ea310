"""What an engine has counted since its start, as vLLM's metrics count it."""

from dataclasses import dataclass

from anbar.sim.engine.request import EngineRequest


@dataclass(slots=True)
class Counters:
    """Totals; tokens unless the name says otherwise. The names of vLLM's counters are in the docstrings."""

    num_preemptions: int = 0
    """Requests (`num_preemptions`)."""
    num_prompt: int = 0
    """Of requests that got their first token (`prompt_tokens`): the sum of the next three."""
    num_prompt_computed: int = 0
    """`prompt_tokens_by_source{source="local_compute"}`."""
    num_prompt_device_hit: int = 0
    """`prompt_tokens_by_source{source="local_cache_hit"}`."""
    num_prompt_external_hit: int = 0
    """`prompt_tokens_by_source{source="external_kv_transfer"}`."""
    num_generated: int = 0
    """`generation_tokens`."""
    num_prefix_queries: int = 0
    """Looked up on the device when requests were admitted first (`prefix_cache_queries`)."""
    num_prefix_hits: int = 0
    num_external_queries: int = 0
    """Looked up in the tiers below (`external_prefix_cache_queries`)."""
    num_external_hits: int = 0
    num_shared_hits: int = 0
    """Those of them that came from the shared tier for the request itself
    (`prompt_tokens_cached_by_source{source="disk"}`); what an earlier request fetched is host RAM's."""
    num_recovered_device: int = 0
    """Of preempted requests, when they ran again: found on the device. No counter of vLLM's."""
    num_recovered_external: int = 0
    """Of these: loaded from the tiers below. Neither is a prefix hit."""
    num_loaded: int = 0
    """Copied to the device."""
    num_stored: int = 0
    """Copied from the device."""

    def count_prompt(self, request: EngineRequest) -> None:
        """A request got its first token."""
        self.num_prompt += request.num_prompt_tokens
        self.num_prompt_computed += request.num_prompt_tokens - request.num_cached_tokens
        self.num_prompt_device_hit += request.num_device_hit
        self.num_prompt_external_hit += request.num_external_hit
