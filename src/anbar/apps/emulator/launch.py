"""From a command line to the engines that it means: sizes, costs, tiers, addresses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anbar.adapters.store.key_directory import KeyDirectory
from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator.default_cost import FREE_STORE, H100_8B, KV_BYTES_PER_TOKEN, STORE
from anbar.apps.emulator.fields import MAX_N, MAX_PROMPTS
from anbar.apps.emulator.flags import MAX_PORT, NO_COST, Flags
from anbar.apps.emulator.settings import EngineSettings
from anbar.core.cost import EngineCost
from anbar.core.cost_file import EngineType
from anbar.core.cost_file import parse as parse_cost
from anbar.core.errors import ConfigError, StoreError
from anbar.plan import kv_size
from anbar.sim.engine.shape import EngineShape, HostShape, Offload
from anbar.sim.engine.shared import SharedTier

BLOCK_SIZE = 16
"""vLLM's default on a GPU."""
NUM_BLOCKS = 16_384
"""Where no flag says how large the device cache is: what an H100 has beside an 8B model, rounded down."""
MAX_MODEL_LEN = 8192
"""Where neither a flag nor the model's config.json says it."""

_STORE_BYTES = 1 << 40
"""Room of a shared store that has no `capacity_bytes`."""


def plan(flags: Flags, model_dir: Path, environ: Mapping[str, str]) -> list[EngineSettings]:
    """The settings of each engine. ConfigError for values that do not go together, or a cost file that is
    none."""
    _check_ports(flags.port, flags.count)
    config = _model_config(model_dir)
    cost, measured = _cost(flags.cost)
    shape = _shape(flags, config, measured)
    host, shared, owner = _tiers(flags, shape)
    settings = EngineSettings(
        model_dir=model_dir,
        root=flags.model or "",
        served_names=flags.served_model_name or (flags.model or model_dir.name,),
        loras=flags.lora_modules,
        runner=flags.runner,
        embedding_size=int(config.get("hidden_size") or 384),
        host=flags.host,
        port=flags.port,
        api_keys=flags.api_key or _key(environ),
        events=_events(flags, environ),
        shape=shape,
        host_tier=host,
        shared=shared,
        store_owner=owner,
        cost=cost,
        speed=flags.speed,
        seed=flags.seed,
        prompt_tokens_details=flags.enable_prompt_tokens_details,
        request_id_headers=flags.enable_request_id_headers,
        force_include_usage=flags.enable_force_include_usage,
        auto_tools=flags.enable_auto_tool_choice,
        dev_mode=_is_on(environ, "VLLM_SERVER_DEV_MODE"),
        runtime_loras=_is_on(environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        max_n=_limit(environ, "VLLM_MAX_N_SEQUENCES", MAX_N),
        max_prompts=_limit(environ, "VLLM_MAX_COMPLETION_PROMPTS", MAX_PROMPTS),
        track_load=flags.enable_server_load_tracking,
    )
    return [_numbered(settings, index) for index in range(flags.count)]


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0").strip().lower() in ("1", "true")


def _limit(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name} is {text!r}, allowed: whole numbers from 1 up")
    return int(text)


def _key(environ: Mapping[str, str]) -> tuple[str, ...]:
    key = environ.get("VLLM_API_KEY")
    return (key,) if key else ()


def _model_config(model_dir: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((model_dir / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _cost(name: str | None) -> tuple[EngineCost, EngineType | None]:
    """The costs, and which engine they were measured on."""
    if name is None:
        return H100_8B, None
    if name == NO_COST:
        return EngineCost(), None
    try:
        text = Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--cost {name}: cannot be read: {error}") from error
    content = parse_cost(text, name)
    return content.cost, content.engine


def _shape(flags: Flags, config: Mapping[str, Any], measured: EngineType | None) -> EngineShape:
    block_size = flags.block_size or (measured.block_size if measured is not None else BLOCK_SIZE)
    longest = flags.max_model_len or int(config.get("max_position_embeddings") or MAX_MODEL_LEN)
    token_bytes = _token_bytes(config, flags.dtype, measured)
    least = -(-longest // block_size) + 1
    num_blocks = flags.num_gpu_blocks_override
    if num_blocks is None and flags.kv_cache_memory_bytes is not None:
        num_blocks = flags.kv_cache_memory_bytes * flags.tensor_parallel_size // (token_bytes * block_size)
    return EngineShape(
        block_size=block_size,
        num_blocks=num_blocks if num_blocks is not None else max(NUM_BLOCKS, least),
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=longest,
        prefix_caching=flags.enable_prefix_caching,
        kv_bytes_per_token=token_bytes,
    )


def _token_bytes(config: Mapping[str, Any], dtype: str, measured: EngineType | None) -> int:
    """KV bytes of a token: as measured, else the model's, else those of the default cost's model."""
    if measured is not None:
        return measured.kv_bytes_per_token
    own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    try:
        return kv_size(config, own if dtype == "auto" else dtype).bytes_per_token
    except ConfigError:
        return KV_BYTES_PER_TOKEN


def _tiers(flags: Flags, shape: EngineShape) -> tuple[HostShape | None, SharedTier | None, str]:
    """Host tier, shared store and what events call it, as `--kv-transfer-config` has them."""
    extra = (flags.kv_transfer_config or {}).get("kv_connector_extra_config") or {}
    host_bytes = _whole(extra, "cpu_bytes_to_use", 0)
    if not host_bytes:
        return None, None, ""
    chunk_blocks = _whole(extra, "blocks_per_chunk", 0)
    chunk_blocks = chunk_blocks or max(1, _whole(extra, "block_size", shape.block_size) // shape.block_size)
    chunk_bytes = chunk_blocks * shape.block_size * shape.kv_bytes_per_token
    offload = Offload.PROMPT if extra.get("offload_prompt_only", True) else Offload.ALL
    host = HostShape(max(1, host_bytes // chunk_bytes), chunk_blocks, offload)
    tiers = extra.get("secondary_tiers")
    if not isinstance(tiers, list) or not tiers:
        return host, None, ""
    store = tiers[0].get("store") if isinstance(tiers[0], dict) else None
    store = store if isinstance(store, dict) else {}
    cost = FREE_STORE if flags.cost == NO_COST else STORE
    owner = f"anbar:{store.get('id', 'emulated')}"
    num_chunks = max(1, _whole(store, "capacity_bytes", _STORE_BYTES) // chunk_bytes)
    chunks = None if flags.shared_dir is None else _chunks_in(flags.shared_dir, num_chunks)
    return host, SharedTier(num_chunks, cost, chunks), owner


def _chunks_in(directory: Path, num_chunks: int) -> KeyDirectory:
    """What engines of several processes share. StoreError when the directory cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"--shared-dir {directory} cannot be made: {error.strerror or error}") from error
    return KeyDirectory(directory, num_chunks)


def _whole(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"--kv-transfer-config: {name} is {value!r}, allowed: whole numbers from 0 up")
    return int(value)


def _events(flags: Flags, environ: Mapping[str, str]) -> PublisherConfig | None:
    wanted = flags.kv_events_config or {}
    if not wanted.get("enable_kv_cache_events") or wanted.get("publisher", "zmq") != "zmq":
        return None
    return PublisherConfig(
        endpoint=str(wanted.get("endpoint") or "tcp://*:5557"),
        replay_endpoint=str(wanted.get("replay_endpoint") or ""),
        topic=str(wanted.get("topic") or ""),
        buffer_steps=int(wanted.get("buffer_steps", 10_000)),
        hwm=int(wanted.get("hwm", 100_000)),
        framing=flags.framing,
        int_hashes=_is_on({"_": environ.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1")}, "_"),
    )


def _check_ports(first: int, count: int) -> None:
    last = first + count - 1
    if first and last > MAX_PORT:
        raise ConfigError(
            f"--port {first} with --count {count} goes up to {last}, beyond the last port, {MAX_PORT}: "
            f"allowed here: up to {MAX_PORT - count + 1}"
        )


def _numbered(settings: EngineSettings, index: int) -> EngineSettings:
    """The engine at `index`: the next port, the next event addresses."""
    if not index:
        return settings
    events = settings.events
    if events is not None:
        replay = _next(events.replay_endpoint, index) if events.replay_endpoint else ""
        events = replace(events, endpoint=_next(events.endpoint, index), replay_endpoint=replay)
    return replace(settings, port=settings.port + index if settings.port else 0, events=events)


def _next(address: str, index: int) -> str:
    """`ipc://path` → `ipc://path.1`, `tcp://*:5557` → `tcp://*:5558`."""
    if not address.startswith("tcp://"):
        return f"{address}.{index}"
    base, _, port = address.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"--kv-events-config: {address!r} has no port that could be numbered")
    if int(port) + index > MAX_PORT:
        raise ConfigError(
            f"--kv-events-config: {address!r} counted up for --count goes beyond port {MAX_PORT}"
        )
    return f"{base}:{int(port) + index}"
