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

A composition root; `apps.stores` knows the kinds of stores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm.config import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.vllm.connector import SharingConnector
from anbar.adapters.vllm.fingerprint import fingerprint
from anbar.adapters.vllm.offload_spec import HostOffloadingSpec
from anbar.adapters.vllm.shared_tier import SharedTier, SharedTierOptions
from anbar.adapters.vllm.store_calls import Timeouts
from anbar.apps.clock import SystemClock
from anbar.apps.stores import Sharing, open_store
from anbar.config.models import Loading
from anbar.config.scope_rules import read_tenants
from anbar.config.store_checks import read_store
from anbar.config.stores import StoreConfig
from anbar.core.errors import ConfigError
from anbar.tier.scopes import Scopes

logger = init_logger("vllm.anbar.plugin")

_MAX_LOOKUP_TIMEOUT_S = 0.5
"""A lookup delays a request that may have to be computed after all, so it gets less time than a load."""


class AnbarConnector(SharingConnector):
    """vLLM's offloading connector; required with `AnbarSharedTier`."""


class AnbarOffloadingSpec(HostOffloadingSpec):
    """Host RAM as the first tier, on GPUs and on CPUs."""


@dataclass(frozen=True, slots=True)
class TierSettings:
    """What the shared tier's entry may have beside `store`."""

    weights_id: str | None = None
    load: Loading = Loading.AUTO
    scopes: Scopes | None = None
    """None: nothing is said of any."""
    keys: Path | None = None
    """Directory of data keys."""

    @classmethod
    def read(cls, settings: Mapping[str, object]) -> "TierSettings":
        """Raises ConfigError for unknown keys and wrong values."""
        allowed = ("load", "store", "tenants", "weights_id")
        unknown = sorted(settings.keys() - set(allowed))
        if unknown:
            raise ConfigError(f"the shared tier has no {unknown[0]}; allowed: {', '.join(allowed)}")
        weights_id, load = settings.get("weights_id"), settings.get("load", "auto")
        if not isinstance(weights_id, str | None):
            raise ConfigError(f"weights_id is {weights_id!r}; allowed: a name")
        if not isinstance(load, str) or load not in tuple(Loading):
            raise ConfigError(f"load is {load!r}; allowed: {', '.join(Loading)}")
        tenants = settings.get("tenants")
        if tenants is None:
            return cls(weights_id, Loading(load))
        if not isinstance(tenants, Mapping):
            raise ConfigError(f"tenants is {tenants!r}; allowed: a table")
        return cls(weights_id, Loading(load), *read_tenants(tenants))


class AnbarSharedTier(SharedTier):
    """The shared tier, from its entry in `secondary_tiers`.

    `store` has the keys of `cache.store` in anbar.yaml; `weights_id` names the weights where they cannot be
    looked at; `load` is `cache.load`; `tenants` says what each scope may have. Raises ConfigError for what is
    unknown or wrong, StoreError when the store cannot be opened."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        *,
        store: Mapping[str, object],
        **further: object,
    ) -> None:
        options = TierSettings.read(further)
        vllm_config = get_current_vllm_config_or_none()
        if vllm_config is None:
            raise ConfigError(
                "the shared tier cannot see vLLM's configuration, and without it could mix the KV of "
                'different models: set "kv_connector": "AnbarConnector" and '
                '"kv_connector_module_path": "anbar.apps.plugin" in --kv-transfer-config'
            )
        row_bytes = primary_kv_view.nbytes // len(primary_kv_view)
        namespace = fingerprint(vllm_config, offloading_spec, row_bytes, options.weights_id)
        settings = read_store(store)
        keys = None if options.keys is None else KeyFiles(options.keys.absolute())
        opened = open_store(settings, Sharing(namespace, options.scopes or Scopes(), keys))
        logger.info("Shared tier: store %s, fingerprint %s", opened.id, namespace.hex()[:16])
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            backpressure_detector,
            store=opened,
            clock=SystemClock(),
            options=SharedTierOptions(
                timeouts(settings), weighs_loads=options.load is Loading.AUTO, scopes=options.scopes
            ),
        )


def timeouts(store: StoreConfig) -> Timeouts:
    """Deadlines of calls on the store."""
    return Timeouts(min(_MAX_LOOKUP_TIMEOUT_S, store.timeout_s), store.timeout_s, store.timeout_s)
