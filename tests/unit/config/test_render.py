"""Rendered commands against golden text: a change here is a change of what every engine runs with."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from anbar.config.models import AnbarConfig, CacheConfig, Device, Dtype, LaunchConfig
from anbar.config.render import (
    EngineSlot,
    engine_command,
    needs_plugin,
    router_config,
    served_name,
    store_settings,
    tier_settings,
)
from anbar.config.split import SplitVia
from anbar.core.errors import ConfigError

CPU = EngineSlot(
    id="small-0",
    model="/models/smollm2",
    served_name="smollm2-135m-instruct",
    device=Device.CPU,
    dtype=Dtype.FLOAT32,
    port=8100,
    scratch_dir=Path("/tmp/anbar-up-x"),
    region="anbar-1234-small-0",
    threads=((0, 1),),
)
CUDA = dataclasses.replace(
    CPU, device=Device.CUDA, dtype=Dtype.AUTO, threads=(), gpus=("2", "3"), model="org/model"
)
STORE = {"kind": "files", "path": "/state/store", "id": "files-0", "timeout_s": 5.0}

GOLDEN_CPU = [
    "/venv/bin/python",
    "-m",
    "vllm.entrypoints.openai.api_server",
    "--model",
    "/models/smollm2",
    "--served-model-name",
    "smollm2-135m-instruct",
    "--host",
    "127.0.0.1",
    "--port",
    "8100",
    "--dtype",
    "float32",
    "--block-size",
    "32",
    "--kv-cache-memory-bytes",
    "1073741824",
    "--enforce-eager",
    "--enable-prompt-tokens-details",
    "--enable-per-request-metrics",
    "--disable-access-log-for-endpoints",
    "/health,/metrics,/v1/models,/tokenize",
    "--kv-events-config",
    '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///tmp/anbar-up-x/small-0.kv",'
    '"replay_endpoint":"ipc:///tmp/anbar-up-x/small-0.replay"}',
    "--kv-transfer-config",
    '{"kv_connector":"AnbarConnector","kv_connector_module_path":"anbar.apps.plugin","kv_role":"kv_both",'
    '"engine_id":"anbar-1234-small-0","kv_connector_extra_config":{"cpu_bytes_to_use":2147483648,'
    '"blocks_per_chunk":1,"offload_prompt_only":false,"spec_name":"AnbarOffloadingSpec",'
    '"spec_module_path":"anbar.apps.plugin","secondary_tiers":[{"type":"AnbarSharedTier",'
    '"module_path":"anbar.apps.plugin","store":{"kind":"files","path":"/state/store","id":"files-0",'
    '"timeout_s":5.0}}]}}',
]


def render(
    slot: EngineSlot, cache: dict[str, Any] | None = None, via: SplitVia = SplitVia.NONE, **launch: Any
) -> tuple[list[str], Any]:
    command = engine_command(
        Path("/venv/bin/python"),
        LaunchConfig.model_validate(launch),
        CacheConfig.model_validate(cache or {}),
        slot,
        {"store": STORE},
        via,
    )
    return list(command.argv), dict(command.env)


def option(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def transfer(argv: list[str]) -> dict[str, Any]:
    text = option(argv, "--kv-transfer-config")
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


def test_golden_cpu_shared() -> None:
    """The default engine on a machine without a GPU, letter by letter."""
    argv, env = render(CPU)
    assert argv == GOLDEN_CPU
    assert env == {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TMPDIR": "/tmp/anbar-up-x",
        "VLLM_RPC_BASE_PATH": "/tmp/anbar-up-x",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0,1",
    }


def test_native_on_cuda_is_stock_vllm() -> None:
    """No Anbar code in the engine, GPUs by name, and nothing set that vLLM chooses better."""
    argv, env = render(CUDA, {"mode": "native", "host_bytes": "1GiB", "offload": "prompt"}, tensor_parallel=2)
    assert "anbar.apps.plugin" not in " ".join(argv)
    assert transfer(argv)["kv_connector"] == "OffloadingConnector"
    assert transfer(argv)["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": 1024**3,
        "blocks_per_chunk": 1,
        "offload_prompt_only": True,
    }
    assert option(argv, "--tensor-parallel-size") == "2"
    assert not {"--block-size", "--kv-cache-memory-bytes", "--enforce-eager"} & set(argv)
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "HF_HUB_OFFLINE" not in env


@pytest.mark.parametrize(("server", "host"), [("10.0.0.9:6000", "10.0.0.9"), ("[fd00::9]:6000", "[fd00::9]")])
def test_lmcache_is_vllms_own_connector(server: str, host: str) -> None:
    """No Anbar code in the engine; a load that fails is computed, and nobody waits for five minutes for a
    server that is dead."""
    argv, _ = render(CPU, {"mode": "lmcache", "lmcache": {"server": server}})
    assert "anbar.apps.plugin" not in " ".join(argv)
    made = transfer(argv)
    assert made["kv_connector"] == "LMCacheMPConnector"
    assert made["kv_load_failure_policy"] == "recompute"
    assert made["kv_connector_extra_config"] == {
        "lmcache.mp.host": f"tcp://{host}",
        "lmcache.mp.port": 6000,
        "lmcache.mp.mq_timeout": 20.0,
        "lmcache.mp.heartbeat_interval": 2.0,
    }


def test_native_on_cpu_uses_the_plugin_without_a_store() -> None:
    """Stock vLLM refuses to offload on a cpu."""
    extra = transfer(render(CPU, {"mode": "native"})[0])["kv_connector_extra_config"]
    assert extra["spec_name"] == "AnbarOffloadingSpec"
    assert "secondary_tiers" not in extra


def test_no_cache_no_transfer() -> None:
    """cache.mode none leaves the connector out altogether; events stay."""
    argv, _ = render(CPU, {"mode": "none"})
    assert "--kv-transfer-config" not in argv
    assert "--kv-events-config" in argv


def test_emulated_engine_takes_vllms_arguments() -> None:
    """The same command with another program in front; what belongs to vLLM's own process is left out."""
    emulated = dataclasses.replace(CPU, device=Device.EMULATED, dtype=Dtype.AUTO, threads=())
    argv, env = render(emulated, {"mode": "shared", "chunk_blocks": 2}, block_size=16, args=["--speed", "10"])
    assert argv[:4] == ["/venv/bin/python", "-m", "anbar.cli.main", "emulate"]
    real, _ = render(CUDA, {"mode": "shared", "chunk_blocks": 2}, block_size=16)
    for flag in ("--served-model-name", "--port", "--block-size", "--kv-events-config", "--dtype"):
        assert option(argv, flag) == option(real, flag)
    extra, as_real = (transfer(command)["kv_connector_extra_config"] for command in (argv, real))
    assert extra["secondary_tiers"] == as_real["secondary_tiers"]
    assert (extra["cpu_bytes_to_use"], extra["blocks_per_chunk"]) == (2 * 1024**3, 2)
    assert not {"--enforce-eager", "--disable-access-log-for-endpoints"} & set(argv)
    assert option(argv, "--shared-dir") == "/tmp/anbar-up-x/shared"
    assert "--shared-dir" not in real
    assert argv[-2:] == ["--speed", "10"]
    assert env == {}


def test_launch_values_reach_the_command() -> None:
    """Everything a launch can say, with the user's own arguments and variables last."""
    argv, env = render(
        CPU,
        max_model_len=2048,
        num_device_blocks=26,
        block_size=64,
        kv_cache_bytes="256MiB",
        weights_id="w1",
        args=["--max-num-seqs", "8"],
        env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )
    assert option(argv, "--max-model-len") == "2048"
    assert option(argv, "--num-gpu-blocks-override") == "26"
    assert option(argv, "--block-size") == "64"
    assert option(argv, "--kv-cache-memory-bytes") == str(256 * 1024**2)
    assert argv[-2:] == ["--max-num-seqs", "8"]
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    (tier,) = transfer(argv)["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["weights_id"] == "w1"
    assert "load" not in tier


def test_loading_always_is_said_to_the_tier() -> None:
    """The plugin's own default is what anbar.yaml's is."""
    (tier,) = transfer(render(CPU, {"load": "always"})[0])["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["load"] == "always"


def test_engines_without_statistics_tell_no_times() -> None:
    """vLLM refuses to start with times in its answers and without its statistics; whoever wants no times
    says so behind our argument."""
    assert "--enable-per-request-metrics" not in render(CPU, args=["--disable-log-stats"])[0]
    argv, _ = render(CPU, args=["--no-enable-per-request-metrics"])
    assert argv.index("--enable-per-request-metrics") < argv.index("--no-enable-per-request-metrics")


def test_workers_are_bound_to_their_cores() -> None:
    """Tensor parallelism on a cpu: a list of cores per worker."""
    _, env = render(dataclasses.replace(CPU, threads=((0, 1), (2, 3))), tensor_parallel=2)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,3"


def test_cpu_block_size_is_checked_when_the_device_is_known() -> None:
    """device: auto that turned out to be a cpu."""
    with pytest.raises(ConfigError, match="multiples of 32"):
        render(CPU, block_size=16)


@pytest.mark.parametrize(
    ("mode", "device", "expected"),
    [
        ("none", Device.CPU, False),
        ("native", Device.CPU, True),
        ("native", Device.CUDA, False),
        ("shared", Device.CPU, True),
        ("shared", Device.CUDA, True),
        ("native", Device.EMULATED, False),
        ("shared", Device.EMULATED, False),
    ],
)
def test_needs_plugin(mode: str, device: Device, expected: bool) -> None:
    """Where Anbar must be importable in the engine's interpreter."""
    assert needs_plugin(CacheConfig.model_validate({"mode": mode}), device) is expected


@pytest.mark.parametrize(
    ("model", "name", "expected"),
    [
        ("smollm2-135m-instruct", None, "smollm2-135m-instruct"),
        ("/models/llama/", None, "llama"),
        ("org/model", None, "model"),
        ("/models/llama", "mine", "mine"),
    ],
)
def test_served_name(model: str, name: str | None, expected: str) -> None:
    """What clients send as `model`."""
    assert served_name(LaunchConfig(model=model, served_name=name)) == expected


def test_store_settings() -> None:
    """Defaults follow from the state directory, the id from the path: machines that mount it agree."""
    config = CacheConfig().store
    one, two = store_settings(config, Path("/a")), store_settings(config, Path("/b"))
    assert one["path"] == "/a/store"
    assert one["id"].startswith("files-")
    assert one["id"] != two["id"]
    limited = config.model_copy(update={"id": "mine", "capacity_bytes": 5})
    assert store_settings(limited, Path("/a"))["capacity_bytes"] == 5
    assert store_settings(limited, Path("/a"))["id"] == "mine"


def test_router_file_is_an_ordinary_configuration() -> None:
    """Launched engines become attached ones; what was attached stays; it loads without complaint."""
    config = AnbarConfig.model_validate(
        {
            "engines": [
                {"name": "small", "launch": {"count": 2}, "cost_file": "/costs/small.json"},
                {"name": "gpu", "url": "http://10.0.0.5:8000", "api_key_env": "KEY"},
            ],
            "router": {"port": 9000},
        }
    )
    slots = {"small": (CPU, dataclasses.replace(CPU, id="small-1", port=8101))}
    data = router_config(config, slots, Path("/state"))
    again = AnbarConfig.model_validate(data)
    assert [engine.name for engine in again.engines] == ["small-0", "small-1", "gpu"]
    assert again.engines[0].url == "http://127.0.0.1:8100"
    assert again.engines[0].events == "ipc:///tmp/anbar-up-x/small-0.kv"
    assert again.engines[1].replay == "ipc:///tmp/anbar-up-x/small-1.replay"
    assert again.engines[0].tokenizer == "/models/smollm2"
    assert [str(engine.cost_file) for engine in again.engines[:2]] == ["/costs/small.json"] * 2
    assert again.engines[2] == config.engines[1]
    assert again.router == config.router
    assert again.cache.store.path == Path("/state/store")


def test_tenants_are_told_to_engines_and_to_the_router() -> None:
    """What engines must know stands in their tier's entry, letter by letter; the router's file has it all."""
    tenants = {
        "header": "x-tenant",
        "by_name": {"a": {"group": "acme"}, "bank": {}},
        "scopes": {
            "acme": {"quota_bytes": "1GiB", "ttl_s": 60},
            "bank": {"encrypt": True, "store": "always"},
        },
    }
    config = AnbarConfig.model_validate({"state_dir": "/state", "tenants": tenants})
    command = engine_command(Path("/python"), LaunchConfig(), config.cache, CPU, tier_settings(config))
    text = option(list(command.argv), "--kv-transfer-config")
    assert text is not None
    assert text.endswith(
        ',"tenants":{"scopes":{"acme":{"quota_bytes":1073741824,"ttl_s":60.0},"bank":{"encrypt":true}},'
        '"keys":"/state/keys"}}]}}'
    )
    again = AnbarConfig.model_validate(router_config(config, {"smollm2": (CPU,)}, Path("/state")))
    assert again.tenants == config.tenants


def test_nixl_takes_the_place_of_the_cache() -> None:
    """An engine that hands prompts over itself: vLLM's connector for both directions, and an address of its
    own on the loopback; on a cpu through host memory and with the transports that are there."""
    argv, env = render(CPU, {"mode": "none"}, SplitVia.NIXL)
    assert argv[argv.index("--kv-transfer-config") + 1] == (
        '{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"anbar-1234-small-0",'
        '"kv_buffer_device":"cpu"}'
    )
    nixl = {key: value for key, value in env.items() if key.startswith(("VLLM_NIXL", "UCX"))}
    assert nixl == {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "18100",
        "UCX_TLS": "tcp,self,sm",
    }
    argv, env = render(CUDA, {"mode": "none"}, SplitVia.NIXL)
    assert "kv_buffer_device" not in argv[argv.index("--kv-transfer-config") + 1]
    assert "UCX_TLS" not in env


def test_the_router_knows_the_tenants() -> None:
    """They reach it as they were written, and so does every table of the file there is."""
    tenants = {
        "header": "x-tenant",
        "scopes": {"lab": {"encrypt": True, "store": "never", "ttl_s": 60.0}},
        "by_name": {"ada": {"group": "lab"}, "shop": None},
    }
    engines = [{"name": "d", "url": "http://d"}]
    config = AnbarConfig.model_validate({"engines": engines, "tenants": tenants})
    found = router_config(config, {}, Path("/state"))
    assert AnbarConfig.model_validate(found).tenants == config.tenants
    assert found.keys() == AnbarConfig.model_fields.keys()


def test_the_router_knows_the_roles() -> None:
    """Of launched engines as of attached ones."""
    engines = [
        {"name": "p", "launch": {}, "role": "prefill"},
        {"name": "d", "url": "http://d", "role": "decode"},
    ]
    config = AnbarConfig.model_validate({"engines": engines, "router": {"split": {"via": "shared"}}})
    found = router_config(config, {"p": (CPU,)}, Path("/state"))
    assert [engine["role"] for engine in found["engines"]] == ["prefill", "decode"]
    assert found["router"]["split"]["via"] == "shared"
