"""The flags whose values are JSON as the emulator's parts: `--kv-events-config`, `--kv-transfer-config`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from anbar.adapters.vllm.kv_publish import Framing, PublisherConfig
from anbar.apps.emulator.bounds import MANY, hold
from anbar.apps.emulator.flags import Flags
from anbar.apps.emulator.stores import StorePlan, modelled
from anbar.apps.emulator.typed_fields import WrongField, convert
from anbar.config.models import Loading
from anbar.core.cost import StoreCost
from anbar.core.errors import ConfigError
from anbar.sim.engine.shape import EngineShape, HostShape, Offload
from anbar.sim.engine.shared import SharedTier

_PLAIN_SPEC = "CPUOffloadingSpec"
"""vLLM's own, and its default: host RAM and nothing behind it."""
ANBARS_TIER = "AnbarSharedTier"
"""`type` of the plugin's tier."""

Container = TypeVar("Container", dict[str, Any], list[Any])


class _Publisher(Enum):
    NULL = "null"
    ZMQ = "zmq"


@dataclass(frozen=True, slots=True)
class _KvEvents:
    """vLLM 0.32 `config/kv_events.py`."""

    enable_kv_cache_events: bool = False
    publisher: _Publisher | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        hold(self, buffer_steps=(0, MANY), hwm=(0, MANY), max_queue_size=(0, MANY))


def events(given: Mapping[str, Any] | None, framing: Framing, *, int_hashes: bool) -> PublisherConfig | None:
    """Where KV events go; None: nowhere. ConfigError for what is not vLLM's."""
    try:
        wanted = convert(given or {}, _KvEvents)
    except WrongField as error:
        raise ConfigError(f"--kv-events-config: {error}") from error
    if not wanted.enable_kv_cache_events or wanted.publisher is _Publisher.NULL:
        return None
    return PublisherConfig(
        endpoint=wanted.endpoint or _KvEvents().endpoint,
        replay_endpoint=wanted.replay_endpoint or "",
        topic=wanted.topic,
        buffer_steps=wanted.buffer_steps,
        hwm=wanted.hwm,
        max_queue_size=wanted.max_queue_size,
        framing=framing,
        int_hashes=int_hashes,
    )


def tiers(
    flags: Flags, shape: EngineShape, stores: Mapping[str, StoreCost]
) -> tuple[HostShape | None, SharedTier | None, str]:
    """Host tier, shared store and what events call it; `stores`: what they cost, by kind. ConfigError, or
    StoreError when `--shared-dir` cannot be used."""
    extra = _part(flags.kv_transfer_config or {}, "kv_connector_extra_config", {})
    host_bytes = _whole(extra, "cpu_bytes_to_use", 0)
    further = _part(extra, "secondary_tiers", [])
    if flags.shared_dir is not None and not (host_bytes and further):
        raise ConfigError(
            f"--shared-dir {flags.shared_dir}: no store is shared; allowed: with --kv-transfer-config whose "
            "kv_connector_extra_config has cpu_bytes_to_use and secondary_tiers"
        )
    if not host_bytes:
        return None, None, ""
    chunk_blocks = _whole(extra, "blocks_per_chunk", 0)
    chunk_blocks = chunk_blocks or max(1, _whole(extra, "block_size", shape.block_size) // shape.block_size)
    chunk_bytes = chunk_blocks * shape.block_size * shape.kv_bytes_per_token
    offload = Offload.PROMPT if extra.get("offload_prompt_only", True) else Offload.ALL
    host = HostShape(max(1, host_bytes // chunk_bytes), chunk_blocks, offload)
    if not further:
        return host, None, ""
    tier = _part({"secondary_tiers[0]": further[0]}, "secondary_tiers[0]", {})
    plan = StorePlan(stores, chunk_bytes, flags.shared_dir, _loading(tier) is Loading.AUTO)
    shared, name = modelled(_store(tier), plan)
    return host, shared, f"anbar:{name}"


def _store(tier: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of Anbar's tier; others have other settings, and are taken for a directory."""
    return _part(tier, "store", {}) if tier.get("type") == ANBARS_TIER else {}


def _loading(tier: Mapping[str, Any]) -> Loading:
    value = tier.get("load", "auto") if tier.get("type") == ANBARS_TIER else "always"
    if not isinstance(value, str) or value not in tuple(Loading):
        raise ConfigError(f"--kv-transfer-config: load is {value!r}, allowed: {', '.join(Loading)}")
    return Loading(value)


def tier_names(flags: Flags) -> dict[str, Any]:
    """What metrics call the tiers, as settings."""
    extra = _part(flags.kv_transfer_config or {}, "kv_connector_extra_config", {})
    tiering = extra.get("spec_name", _PLAIN_SPEC) != _PLAIN_SPEC
    further = _part(extra, "secondary_tiers", [])
    if not further:
        return {"tiering": tiering}
    kind = _part({"secondary_tiers[0]": further[0]}, "secondary_tiers[0]", {}).get("type", "")
    return {"tiering": True, "tier_type": str(kind)}


def _part(values: Mapping[str, Any], name: str, default: Container) -> Container:
    """An object or a list, as `default` is one; null is `default`."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, type(default)):
        allowed = "an object" if isinstance(default, dict) else "a list"
        raise ConfigError(f"--kv-transfer-config: {name} is {value!r}, allowed: {allowed}")
    return value


def _whole(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1:
        raise ConfigError(f"--kv-transfer-config: {name} is {value!r}, allowed: whole numbers from 0 up")
    return int(value)
