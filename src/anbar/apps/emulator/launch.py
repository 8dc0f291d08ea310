"""From a command line to the engines that it means: sizes, costs, tiers, addresses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anbar.apps.calibrate.files import read_cost_file
from anbar.apps.emulator import environment, json_flags, nixl
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.emulator.flag_values import MAX_PORT
from anbar.apps.emulator.flags import (
    AUTO_LEN,
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    MAX_NUM_BLOCKS,
    NO_COST,
    NUM_BATCHED_TOKENS,
    NUM_BLOCKS,
    NUM_SEQS,
    Flags,
)
from anbar.apps.emulator.settings import EngineSettings
from anbar.apps.emulator.store_costs import STORES
from anbar.core.cost import EngineCost, StoreCost
from anbar.core.cost_file import EngineType
from anbar.core.errors import ConfigError
from anbar.plan import kv_size
from anbar.sim.engine.shape import EngineShape

_EMBEDDING_SIZE = 384
"""Where the model's configuration does not say it."""
_LARGE_DEVICES = ("H100", "H200", "H20", "B200", "B300", "MI300", "MI325", "MI350", "MI355")
"""Of 70 GiB and more, but for the A100."""


def plan(flags: Flags, model_dir: Path, environ: Mapping[str, str]) -> list[EngineSettings]:
    """The settings of each engine. ConfigError for values that do not go together, or a cost file that is
    none."""
    _check_ports(flags.port, flags.count)
    config = _model_config(model_dir)
    cost, measured, stores = _cost(flags.cost)
    shape = _shape(flags, config, measured)
    host, shared, owner = json_flags.tiers(flags, shape, stores)
    int_hashes = environment.INT_HASHES.is_on(environ)
    settings = EngineSettings(
        model_dir=model_dir,
        root=flags.model or "",
        served_names=flags.served_model_name or (flags.model or model_dir.name,),
        loras=flags.lora_modules,
        runner=flags.runner,
        embedding_size=_size(config, "hidden_size") or _EMBEDDING_SIZE,
        host=flags.host,
        port=flags.port,
        api_keys=flags.api_key or environment.api_keys(environ),
        **json_flags.tier_names(flags),
        events=json_flags.events(flags.kv_events_config, flags.framing, int_hashes=int_hashes),
        shape=shape,
        host_tier=host,
        shared=shared,
        store_owner=owner,
        nixl=nixl.configured(flags.kv_transfer_config, environ),
        cost=cost,
        speed=flags.speed,
        seed=flags.seed,
        prompt_tokens_details=flags.enable_prompt_tokens_details,
        per_request_metrics=flags.enable_per_request_metrics,
        request_id_headers=flags.enable_request_id_headers,
        force_include_usage=flags.enable_force_include_usage,
        auto_tools=flags.enable_auto_tool_choice,
        dev_mode=environment.DEV_MODE.is_on(environ),
        runtime_loras=environment.RUNTIME_LORAS.is_on(environ),
        max_n=environment.NUM_SEQUENCES.number(environ),
        max_prompts=environment.NUM_PROMPTS.number(environ),
        track_load=flags.enable_server_load_tracking,
        hash_seed=environment.HASH_SEED.text(environ),
    )
    return [_numbered(settings, index) for index in range(flags.count)]


def _model_config(model_dir: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((model_dir / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _cost(name: str | None) -> tuple[EngineCost, EngineType | None, Mapping[str, StoreCost]]:
    """The costs, which engine they were measured on, and those of stores by kind."""
    if name is None:
        return H100_8B, None, STORES
    if name == NO_COST:
        return EngineCost(), None, {}
    try:
        content = read_cost_file(Path(name))
    except ConfigError as error:
        raise ConfigError(f"--cost {error}") from error
    if not content.cost.tokens.points:
        text = f"--cost {name}: cost.tokens is [], allowed: at least two pairs"
        raise ConfigError(f"{text} (steps that take no time: --cost {NO_COST})")
    return content.cost, content.engine, {**STORES, **content.stores}


def _shape(flags: Flags, config: Mapping[str, Any], measured: EngineType | None) -> EngineShape:
    block_size = flags.block_size or (measured.block_size if measured is not None else BLOCK_SIZE)
    own = _size(config, "max_position_embeddings") or MAX_MODEL_LEN
    longest = own if flags.max_model_len in (None, AUTO_LEN) else flags.max_model_len
    token_bytes = _token_bytes(config, flags.dtype, measured)
    least = -(-longest // block_size) + 1
    num_blocks = flags.num_gpu_blocks_override
    if num_blocks is None and flags.kv_cache_memory_bytes is not None:
        num_blocks = flags.kv_cache_memory_bytes * flags.tensor_parallel_size // (token_bytes * block_size)
        if num_blocks < (2 if flags.max_model_len == AUTO_LEN else least):
            least_bytes = -(-least * token_bytes * block_size // flags.tensor_parallel_size)
            raise ConfigError(
                f"--kv-cache-memory-bytes {flags.kv_cache_memory_bytes} is room for {num_blocks} blocks of "
                f"{block_size} tokens, too few for --max-model-len {longest}; allowed: from {least_bytes} up"
            )
    if num_blocks is None:
        num_blocks = max(NUM_BLOCKS, least)
    elif flags.max_model_len == AUTO_LEN:
        longest = min(longest, (num_blocks - 1) * block_size)
    if num_blocks > MAX_NUM_BLOCKS:
        raise ConfigError(
            f"{num_blocks} blocks of {block_size} tokens, for a context of {longest}, are more than an "
            f"emulator has memory for; allowed: up to {MAX_NUM_BLOCKS}"
        )
    num_tokens = measured.max_num_batched_tokens if measured is not None else NUM_BATCHED_TOKENS
    return EngineShape(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=flags.max_num_seqs or _num_seqs(measured, flags.tensor_parallel_size),
        max_num_batched_tokens=flags.max_num_batched_tokens or num_tokens,
        max_model_len=longest,
        prefix_caching=flags.enable_prefix_caching,
        kv_bytes_per_token=token_bytes,
    )


def _num_seqs(measured: EngineType | None, num_workers: int) -> int:
    """vLLM's default of a server on that device (`EngineArgs.get_batch_defaults`); of the default costs' when
    there is none."""
    if measured is None or any(name in measured.device.upper() for name in _LARGE_DEVICES):
        return NUM_SEQS
    return 128 * num_workers if measured.device == "cpu" else 256


def _size(config: Mapping[str, Any], name: str) -> int | None:
    """A number of the model's configuration; None when it is not there."""
    value = config.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"config.json of the model: {name} is {value!r}, allowed: whole numbers from 1 up")
    return value


def _token_bytes(config: Mapping[str, Any], dtype: str, measured: EngineType | None) -> int:
    """KV bytes of a token: as measured, else the model's, else those of the default cost's model."""
    if measured is not None:
        return measured.kv_bytes_per_token
    own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    try:
        return kv_size(config, own if dtype == "auto" else dtype).bytes_per_token
    except ConfigError:
        return KV_BYTES_PER_TOKEN


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
    if not int(port):
        return address  # each is given one
    if int(port) + index > MAX_PORT:
        raise ConfigError(
            f"--kv-events-config: {address!r} counted up for --count goes beyond port {MAX_PORT}"
        )
    return f"{base}:{int(port) + index}"
