"""What vLLM loads by module path: the offloading spec, the shared tier and the connector between them.

    --kv-transfer-config '{
      "kv_connector": "AnbarConnector", "kv_connector_module_path": "anbar.apps.plugin",
      "kv_role": "kv_both", "engine_id": "<unique on the machine>",
      "kv_connector_extra_config": {
        "spec_name": "AnbarOffloadingSpec", "spec_module_path": "anbar.apps.plugin",
        "cpu_bytes_to_use": 2147483648, "blocks_per_chunk": 1, "offload_prompt_only": false,
        "secondary_tiers": [{
          "type": "AnbarSharedTier", "module_path": "anbar.apps.plugin",
          "store": {"kind": "files", "path": "/var/lib/anbar/store"}}]}}'

A composition root: the one place inside the engine that knows concrete stores.
"""

from collections.abc import Mapping
from pathlib import Path

from vllm.config import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.sweep import Bounds
from anbar.adapters.vllm.connector import SharingConnector
from anbar.adapters.vllm.fingerprint import fingerprint
from anbar.adapters.vllm.offload_spec import HostOffloadingSpec
from anbar.adapters.vllm.shared_tier import SharedTier, SharedTierOptions
from anbar.adapters.vllm.store_calls import Timeouts
from anbar.apps.clock import SystemClock
from anbar.config.models import StoreConfig
from anbar.config.render import store_settings
from anbar.core.errors import ConfigError
from anbar.tier.store import Store

logger = init_logger("vllm.anbar.plugin")

_STORE_KINDS = ("files",)
_DEFAULT_TIMEOUT_S = 5.0
_MAX_LOOKUP_TIMEOUT_S = 0.5
"""A lookup delays a request that may have to be computed after all, so it gets less time than a load."""


class AnbarConnector(SharingConnector):
    """vLLM's offloading connector; required with `AnbarSharedTier`."""


class AnbarOffloadingSpec(HostOffloadingSpec):
    """Host RAM as the first tier, on GPUs and on CPUs."""


class AnbarSharedTier(SharedTier):
    """The shared tier, from its entry in `secondary_tiers`.

    `store` is `{"kind", "path", "id", "capacity_bytes", "timeout_s"}`; `weights_id` names the weights where
    they cannot be looked at. Raises ConfigError for what is unknown or wrong, StoreError when the store
    cannot be opened."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        *,
        store: Mapping[str, object],
        weights_id: str | None = None,
    ) -> None:
        vllm_config = get_current_vllm_config_or_none()
        if vllm_config is None:
            raise ConfigError(
                "the shared tier cannot see vLLM's configuration, and without it could mix the KV of "
                'different models: set "kv_connector": "AnbarConnector" and '
                '"kv_connector_module_path": "anbar.apps.plugin" in --kv-transfer-config'
            )
        row_bytes = primary_kv_view.nbytes // len(primary_kv_view)
        namespace = fingerprint(vllm_config, offloading_spec, row_bytes, weights_id)
        opened = open_store(store, namespace)
        logger.info("Shared tier: store %s, fingerprint %s", opened.id, namespace.hex()[:16])
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            backpressure_detector,
            store=opened,
            clock=SystemClock(),
            options=SharedTierOptions(timeouts(store)),
        )


def open_store(config: Mapping[str, object], namespace: bytes) -> Store:
    """The store that `config` names, opened for one namespace."""
    kind = config.get("kind")
    if kind != "files":
        raise ConfigError(f"store.kind is {kind!r}; allowed: {', '.join(_STORE_KINDS)}")
    unknown = sorted(config.keys() - {"kind", "path", "id", "capacity_bytes", "timeout_s"})
    if unknown:
        raise ConfigError(
            f"store has unknown keys: {', '.join(unknown)}; "
            "allowed: kind, path, id, capacity_bytes, timeout_s"
        )
    path = config.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError(f"store.path is {path!r}; it must be a directory")
    root = Path(path).absolute()
    store = FilesStore(FilesConfig(root, _store_id(config, root), Bounds(_capacity(config))), namespace)
    store.open()
    return store


def timeouts(config: Mapping[str, object]) -> Timeouts:
    """Deadlines of calls on the store."""
    value = config.get("timeout_s", _DEFAULT_TIMEOUT_S)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"store.timeout_s is {value!r}; it must be a number of seconds above 0")
    return Timeouts(min(_MAX_LOOKUP_TIMEOUT_S, value), value, value)


def _store_id(config: Mapping[str, object], root: Path) -> str:
    """The given name, or the one that the router gives a store of this path."""
    value = config.get("id")
    if value is None:
        value = store_settings(StoreConfig(path=root), root)["id"]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"store.id is {value!r}; it must be a name")
    return value


def _capacity(config: Mapping[str, object]) -> int | None:
    value = config.get("capacity_bytes")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"store.capacity_bytes is {value!r}; it must be a number of bytes above 0")
    return value
