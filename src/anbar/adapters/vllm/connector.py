"""vLLM's offloading connector, for an engine that shares its KV. It does two things more.

vLLM hands an offloading spec a digest of its configuration that leaves out what a fingerprint needs
(overrides of the model's configuration, quantization, the hash function, ...). A connector gets all of
it. This one makes it vLLM's *current configuration* while the spec and its tiers are made, as vLLM itself
does in its workers.

And a tier sees keys, but neither steps nor what they take. A connector hears of each step when it is
scheduled and when it has ended; this one tells the tier, which learns what computing costs."""

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput

from anbar.adapters.vllm.shared_tier import SharedTier
from anbar.adapters.vllm.step_work import step_work
from anbar.tier.step_times import StepTimes


class SharingConnector(OffloadingConnector):  # type: ignore[misc]  # vLLM is not there when types are checked
    """`OffloadingConnector` whose tiers can ask for vLLM's current configuration."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        with set_current_vllm_config(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)
        self._steps = self._step_times() if role == KVConnectorRole.SCHEDULER else None

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        metadata = super().build_connector_meta(scheduler_output)
        if self._steps is not None:
            self._steps.scheduled(*step_work(scheduler_output))
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        if self._steps is not None:
            self._steps.ended()

    def _step_times(self) -> StepTimes | None:
        """The shared tier's; None where there is none."""
        tiers = getattr(self.scheduler.manager, "secondary_tiers", ())
        return next((tier.steps for tier in tiers if isinstance(tier, SharedTier)), None)
