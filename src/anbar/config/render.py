"""From configuration to the command line and environment of one vLLM engine, and to the router's own file.

Pure: the same input gives the same text, so golden tests hold it. What depends on the machine (device, cores,
paths) comes in as values. Flags are those of vLLM 0.32 (`entrypoints/launchers/cli_args.py`,
`engine/arg_utils.py`, `platforms/cpu.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anbar.config.checks import CPU_BLOCK_MULTIPLE
from anbar.config.exchange import host_and_port
from anbar.config.lmcache import LmcacheConfig
from anbar.config.models import (
    AnbarConfig,
    CacheConfig,
    CacheMode,
    Device,
    Dtype,
    LaunchConfig,
    Loading,
    Offload,
)
from anbar.config.scope_rules import tenant_settings
from anbar.config.split import SplitVia, nixl_port
from anbar.config.stores import store_settings
from anbar.core.errors import ConfigError

PLUGIN_MODULE = "anbar.apps.plugin"
"""What vLLM loads as spec and tier; it must be importable in the engine's interpreter."""

EMULATOR = ("anbar.cli.main", "emulate")
"""The module, and its command, that answers in place of vLLM's API server."""

EMULATED_STORE = "shared"
"""Directory below the scratch directory in which emulated engines note what is in the store. Never the
store's own: to a real engine their entries would be damaged."""

CPU_BLOCK_SIZE = 32
"""Default tokens per block on a cpu: the smallest that its attention takes, for the finest reuse."""

CPU_KV_BYTES = 1024**3
"""Default device KV on a cpu: some 20,000 tokens of the small model."""

_QUIET_ENV: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""Nothing that Anbar starts reports to anybody."""

_UNLOGGED = "/health,/metrics,/v1/models,/tokenize"
"""What the router asks again and again, without anything to learn from it in the engine's log."""


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """Everything about one engine that is not in its configuration.

    `model` is a directory or a hub name, `device` and `dtype` are never AUTO on a cpu; `events` and `replay`
    are sockets in `scratch_dir`; `region` names its host memory (`/dev/shm/vllm_offload_<region>.mmap`);
    `threads` are the CPU ids of each worker (cpu), `gpus` the devices of the engine (cuda; empty: all). An
    emulated engine (`device`) has none of the last three, and its `model` may be the built-in tokenizer.
    """

    id: str
    model: str
    served_name: str
    device: Device
    dtype: Dtype
    port: int
    scratch_dir: Path
    region: str
    threads: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def events(self) -> str:
        return f"ipc://{self.scratch_dir}/{self.id}.kv"

    @property
    def replay(self) -> str:
        return f"ipc://{self.scratch_dir}/{self.id}.replay"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """`argv` to execute, and `env` to add to the launcher's environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def served_name(launch: LaunchConfig) -> str:
    """The name that clients use: as configured, else the last part of the model's path or hub name."""
    return launch.served_name or launch.model.rstrip("/").rsplit("/", 1)[-1]


def needs_plugin(cache: CacheConfig, device: Device) -> bool:
    """Whether Anbar's code runs inside the engine: for a shared store, and for any offload on a cpu, where
    stock vLLM has none. Never inside an emulated one, which models it."""
    if device is Device.EMULATED:
        return False
    return cache.mode is CacheMode.SHARED or (cache.mode is CacheMode.NATIVE and device is Device.CPU)


def engine_command(
    python: Path,
    launch: LaunchConfig,
    cache: CacheConfig,
    slot: EngineSlot,
    tier: Mapping[str, Any],
    via: SplitVia = SplitVia.NONE,
) -> EngineCommand:
    """The command of one engine; `tier` is from `tier_settings`, `via` how it takes and gives computed
    prompts. An emulated engine takes vLLM's arguments, so that it is configured as the one that it stands
    for; `python` is then the one that has Anbar."""
    nixl = via is SplitVia.NIXL
    argv = [
        *(str(python), "-m", *_program(slot.device)),
        *("--model", slot.model, "--served-model-name", slot.served_name),
        *("--host", "127.0.0.1", "--port", str(slot.port)),
        *_shape_args(launch, slot),
        "--enable-prompt-tokens-details",
        *_metrics_args(launch),
        *_log_args(slot.device),
        *("--kv-events-config", _json(_events(slot))),
    ]
    transfer = _nixl(slot) if nixl else _transfer(cache, slot, tier, launch.weights_id)
    if transfer is not None:
        argv += ["--kv-transfer-config", _json(transfer)]
    if slot.device is Device.EMULATED and cache.mode is CacheMode.SHARED:
        argv += ["--shared-dir", f"{slot.scratch_dir}/{EMULATED_STORE}"]
    return EngineCommand(
        (*argv, *launch.args), {**_env(slot), **(_nixl_env(slot) if nixl else {}), **launch.env}
    )


def tier_settings(config: AnbarConfig) -> dict[str, Any]:
    """What the shared tier of every engine is told of the store and of those who share it."""
    settings: dict[str, Any] = {"store": store_settings(config.cache.store, config.state_dir)}
    if config.tenants is not None:
        settings["tenants"] = tenant_settings(config.tenants, config.state_dir)
    return settings


def router_config(
    config: AnbarConfig, slots: Mapping[str, tuple[EngineSlot, ...]], state_dir: Path
) -> dict[str, Any]:
    """The router's own anbar.yaml as plain data: `config` with each launched entry replaced by its `slots`
    (by the entry's name), attached like engines of any other origin."""
    engines: list[dict[str, Any]] = []
    for engine in config.engines:
        if engine.launch is None:
            engines.append(engine.model_dump(mode="json", exclude_none=True))
            continue
        for slot in slots[engine.name]:
            attached = {"name": slot.id, "url": slot.url, "events": slot.events, "replay": slot.replay}
            attached["role"] = str(engine.role)
            if slot.model.startswith("/"):
                attached["tokenizer"] = slot.model
            if engine.cost_file is not None:
                attached["cost_file"] = str(engine.cost_file)
            engines.append(attached)
    cache = config.cache.model_dump(mode="json")
    cache["store"] = store_settings(config.cache.store, state_dir)
    file: dict[str, Any] = {
        "state_dir": str(state_dir),
        "engines": engines,
        "cache": cache,
        "router": config.router.model_dump(mode="json"),
        "tenants": None if config.tenants is None else config.tenants.model_dump(mode="json"),
    }
    if config.tenants is not None:
        file["tenants"] = config.tenants.model_dump(mode="json", exclude_none=True)
    return file


def _program(device: Device) -> tuple[str, ...]:
    if device is Device.EMULATED:
        return EMULATOR
    return ("vllm.entrypoints.openai.api_server",)


def _metrics_args(launch: LaunchConfig) -> tuple[str, ...]:
    """Answers that tell the engine's own times: only so the first token of one that is not streamed is known.
    vLLM does not start with them but without its statistics."""
    return () if "--disable-log-stats" in launch.args else ("--enable-per-request-metrics",)


def _log_args(device: Device) -> tuple[str, ...]:
    """An emulated engine logs no requests at all."""
    return () if device is Device.EMULATED else ("--disable-access-log-for-endpoints", _UNLOGGED)


def _shape_args(launch: LaunchConfig, slot: EngineSlot) -> list[str]:
    cpu = slot.device is Device.CPU
    block_size = launch.block_size if launch.block_size is not None else CPU_BLOCK_SIZE if cpu else None
    if cpu and block_size is not None and block_size % CPU_BLOCK_MULTIPLE:
        raise ConfigError(
            f"block_size of {slot.id} is {block_size}; allowed on a cpu: multiples of {CPU_BLOCK_MULTIPLE}"
        )
    kv_bytes = launch.kv_cache_bytes if launch.kv_cache_bytes is not None else CPU_KV_BYTES if cpu else None
    args = ["--dtype", str(slot.dtype)]
    for flag, value in (
        ("--max-model-len", launch.max_model_len),
        ("--block-size", block_size),
        ("--num-gpu-blocks-override", launch.num_device_blocks),
        ("--kv-cache-memory-bytes", kv_bytes),
        ("--tensor-parallel-size", launch.tensor_parallel if launch.tensor_parallel > 1 else None),
    ):
        if value is not None:
            args += [flag, str(value)]
    if cpu:
        args.append("--enforce-eager")  # compiling takes minutes on a few cores and gains little there
    return args


def _events(slot: EngineSlot) -> dict[str, Any]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": slot.events,
        "replay_endpoint": slot.replay,
    }


def _transfer(
    cache: CacheConfig, slot: EngineSlot, settings: Mapping[str, Any], weights_id: str | None
) -> dict[str, Any] | None:
    if cache.mode is CacheMode.NONE:
        return None
    if cache.mode is CacheMode.LMCACHE:
        return None if slot.device is Device.EMULATED else _lmcache(cache.lmcache, slot)
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": cache.host_bytes,
        "blocks_per_chunk": cache.chunk_blocks,
        "offload_prompt_only": cache.offload is Offload.PROMPT,
    }
    if needs_plugin(cache, slot.device):
        extra["spec_name"] = "AnbarOffloadingSpec"
        extra["spec_module_path"] = PLUGIN_MODULE
    if cache.mode is CacheMode.SHARED:
        tier = {"type": "AnbarSharedTier", "module_path": PLUGIN_MODULE, **settings}
        if weights_id is not None:
            tier["weights_id"] = weights_id
        if cache.load is not Loading.AUTO:
            tier["load"] = str(cache.load)
        extra["secondary_tiers"] = [tier]
    return {**_connector(cache), "engine_id": slot.region, "kv_connector_extra_config": extra}


def _lmcache(lmcache: LmcacheConfig, slot: EngineSlot) -> dict[str, Any]:
    """Of 0.5.6, as its connector in vLLM 0.32 reads it. What cannot be loaded is computed: by default such a
    request fails."""
    host, port = host_and_port(lmcache.server)
    extra = {
        "lmcache.mp.host": f"tcp://[{host}]" if ":" in host else f"tcp://{host}",
        "lmcache.mp.port": port,
        "lmcache.mp.mq_timeout": lmcache.timeout_s,
        "lmcache.mp.heartbeat_interval": lmcache.heartbeat_s,
    }
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "engine_id": slot.region,
        "kv_connector_extra_config": extra,
    }


def _nixl(slot: EngineSlot) -> dict[str, Any]:
    """Every engine gives and takes: what it does is the router's to say, with each request."""
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": slot.region}
    return {**transfer, "kv_buffer_device": "cpu"} if slot.device is Device.CPU else transfer


def _connector(cache: CacheConfig) -> dict[str, str]:
    """The shared tier needs the connector that lets it see the whole of vLLM's configuration."""
    if cache.mode is CacheMode.SHARED:
        names = {"kv_connector": "AnbarConnector", "kv_connector_module_path": PLUGIN_MODULE}
    else:
        names = {"kv_connector": "OffloadingConnector"}
    return {**names, "kv_role": "kv_both"}


def _nixl_env(slot: EngineSlot) -> dict[str, str]:
    env = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(nixl_port(slot.port)),
    }
    if slot.device is Device.CPU:
        env["UCX_TLS"] = "tcp,self,sm"  # what a machine without a GPU and InfiniBand has
    return env


def _env(slot: EngineSlot) -> dict[str, str]:
    if slot.device is Device.EMULATED:
        return {}
    # vLLM leaves sockets and files in its temporary directory: they go where the stack removes them.
    env = {**_QUIET_ENV, "TMPDIR": str(slot.scratch_dir), "VLLM_RPC_BASE_PATH": str(slot.scratch_dir)}
    if slot.model.startswith("/"):
        env["HF_HUB_OFFLINE"] = "1"
    if slot.device is Device.CPU:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, cores)) for cores in slot.threads)
    elif slot.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    return env


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))
