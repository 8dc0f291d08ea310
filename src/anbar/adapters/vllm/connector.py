"""vLLM's offloading connector, for an engine that shares its KV.

vLLM hands an offloading spec a digest of its configuration that leaves out what a fingerprint needs
(overrides of the model's configuration, quantization, the hash function, ...). A connector gets all of
it. This one makes it vLLM's *current configuration* while the spec and its tiers are made, as vLLM itself
does in its workers."""

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import KVCacheConfig


class SharingConnector(OffloadingConnector):  # type: ignore[misc]  # vLLM is not there when types are checked
    """`OffloadingConnector` whose tiers can ask for vLLM's current configuration."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        with set_current_vllm_config(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)
