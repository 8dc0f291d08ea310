"""vLLM's offloading connector, for an engine that shares its KV. It does two things more.

vLLM hands an offloading spec a digest of its configuration that leaves out what a fingerprint needs
(overrides of the model's configuration, quantization, the hash function, ...). A connector gets all of
it. This one makes it vLLM's *current configuration* while the spec and its tiers are made, as vLLM itself
does in its workers.

And a tier sees keys, but neither steps nor what they take. A connector hears of each step when it is
scheduled and when it has ended; this one tells the tier, which learns what computing costs. It asks a second
time for a request whose keys a store can answer at once, which would miss the step otherwise."""

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from anbar.adapters.vllm.shared_tier import SharedTier
from anbar.adapters.vllm.step_work import step_work


class SharingConnector(OffloadingConnector):  # type: ignore[misc]  # vLLM is not there when types are checked
    """`OffloadingConnector` whose tiers can ask for vLLM's current configuration."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        with set_current_vllm_config(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)
        self._tier = self._shared_tier() if role == KVConnectorRole.SCHEDULER else None

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found[0] is None and self._tier is not None and self._tier.hear():
            found = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        metadata = super().build_connector_meta(scheduler_output)
        if self._tier is not None:
            self._tier.steps.scheduled(*step_work(scheduler_output))
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        if self._tier is not None:
            self._tier.steps.ended()

    def _shared_tier(self) -> SharedTier | None:
        """None where there is none."""
        tiers = getattr(self.scheduler.manager, "secondary_tiers", ())
        return next((tier for tier in tiers if isinstance(tier, SharedTier)), None)
