"""The command line of `anbar emulate`: vLLM's flags keep their meaning, others are named, errors too."""

import json
from pathlib import Path

import pytest

from anbar.adapters.vllm.kv_publish import Framing
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.emulator.flags import NUM_BLOCKS, _parser, parse
from anbar.apps.emulator.launch import plan
from anbar.apps.emulator.nixl import Nixl
from anbar.apps.emulator.settings import EngineSettings, Runner
from anbar.apps.emulator.text import load_text
from anbar.core.cost import EngineCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured, render
from anbar.core.errors import ConfigError, StoreError
from anbar.sim.engine.shape import HostShape, Offload

EVENTS = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "ipc:///x/kv",
    "replay_endpoint": "",
}
LAST_PORT = json.dumps({**EVENTS, "endpoint": "tcp://*:65535"})
TRANSFER = {
    "kv_connector": "AnbarConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "cpu_bytes_to_use": 100 * KV_BYTES_PER_TOKEN * 32,
        "blocks_per_chunk": 2,
        "offload_prompt_only": False,
        "secondary_tiers": [{"type": "AnbarSharedTier", "store": {"id": "s", "capacity_bytes": 10**12}}],
    },
}


def planned(model_dir: Path, *argv: str, **environ: str) -> list[EngineSettings]:
    return plan(parse(argv), model_dir, environ)


def test_defaults(model_dir: Path) -> None:
    """Without a flag: one engine of estimated costs, on loopback, named after its directory."""
    (engine,) = planned(model_dir)
    assert (engine.host, engine.port, engine.served_names) == ("127.0.0.1", 8000, ("tiny",))
    assert (engine.shape.block_size, engine.shape.num_blocks) == (16, NUM_BLOCKS)
    assert engine.shape.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    assert engine.cost == H100_8B
    assert engine.events is engine.host_tier is engine.shared is None
    assert not any((engine.prompt_tokens_details, engine.per_request_metrics))
    assert not any((engine.dev_mode, engine.runtime_loras))


def test_a_rendered_command(model_dir: Path) -> None:
    """What `anbar up` renders for a real engine is understood; what has no meaning here is named."""
    argv = [
        *("--model", str(model_dir), "--served-model-name", "small", "--host", "127.0.0.1", "--port", "8101"),
        *("--dtype", "float32", "--max-model-len", "2k", "--block-size", "32"),
        *("--num-gpu-blocks-override", "300", "--enforce-eager", "--enable-prompt-tokens-details"),
        "--enable-per-request-metrics",
        *("--disable-access-log-for-endpoints", "/health,/metrics"),
        *("--kv-events-config", json.dumps(EVENTS), "--kv-transfer-config", json.dumps(TRANSFER)),
    ]
    flags = parse(argv)
    assert flags.ignored == ("--enforce-eager", "--disable-access-log-for-endpoints")
    (engine,) = plan(flags, model_dir, {})
    assert (engine.root, engine.served_names, engine.port) == (str(model_dir), ("small",), 8101)
    shape = engine.shape
    assert (shape.max_model_len, shape.block_size, shape.num_blocks) == (2000, 32, 300)
    assert engine.prompt_tokens_details
    assert engine.per_request_metrics
    assert engine.events is not None
    assert (engine.events.endpoint, engine.events.replay_endpoint) == ("ipc:///x/kv", "")
    assert engine.host_tier == HostShape(50, 2, Offload.ALL)
    assert engine.shared is not None
    assert engine.store_owner == "anbar:s"


def test_many_engines_are_numbered(model_dir: Path) -> None:
    """Ports and event addresses count up; a store in memory is the same object for all."""
    events = json.dumps({**EVENTS, "replay_endpoint": "tcp://*:5600"})
    argv = ("--count", "3", "--port", "9000", "--kv-events-config", events)
    engines = planned(model_dir, *argv, "--kv-transfer-config", json.dumps(TRANSFER))
    assert [engine.port for engine in engines] == [9000, 9001, 9002]
    published = [engine.events for engine in engines if engine.events is not None]
    assert [p.endpoint for p in published] == ["ipc:///x/kv", "ipc:///x/kv.1", "ipc:///x/kv.2"]
    assert [p.replay_endpoint for p in published] == ["tcp://*:5600", "tcp://*:5601", "tcp://*:5602"]
    assert engines[0].shared is engines[2].shared is not None
    assert [engine.port for engine in planned(model_dir, "--count", "2", "--port", "0")] == [0, 0]
    assert planned(model_dir, "--count", "4", "--port", "65532")[-1].port == 65535


def test_ports_of_the_systems_choice_stay_so(model_dir: Path) -> None:
    """Each engine is given one of its own."""
    events = json.dumps({**EVENTS, "endpoint": "tcp://*:0"})
    for engine in planned(model_dir, "--count", "3", "--kv-events-config", events):
        assert engine.events is not None
        assert engine.events.endpoint == "tcp://*:0"


@pytest.mark.parametrize("text", ["auto", "AUTO", "-1"])
def test_the_longest_context_that_fits(model_dir: Path, text: str) -> None:
    """The model's own where the blocks are enough for it, else what they hold."""
    for num_blocks, longest in ((100_000, 8192), (65, 1024)):
        argv = ("--max-model-len", text, "--num-gpu-blocks-override", str(num_blocks))
        assert planned(model_dir, *argv)[0].shape.max_model_len == longest


def test_odd_configurations_are_refused_by_name(tmp_path: Path, model_dir: Path) -> None:
    """Numbers of the model's configuration that are none."""
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name, value in (("hidden_size", "large"), ("max_position_embeddings", [1]), ("hidden_size", 0)):
        (tmp_path / "config.json").write_text(json.dumps({name: value}))
        with pytest.raises(ConfigError, match=rf"config.json of the model: {name} is "):
            planned(tmp_path)


@pytest.mark.parametrize(
    ("device", "num_seqs"),
    [("cpu", 256), ("NVIDIA H200", 1024), ("NVIDIA A100-SXM4-80GB", 256), ("NVIDIA L4", 256)],
)
def test_a_step_is_as_large_as_vllms(tmp_path: Path, model_dir: Path, device: str, num_seqs: int) -> None:
    """vLLM's defaults depend on the device: that of the default cost, or of the cost file, whose budget of
    tokens comes along. Flags come first."""
    (engine,) = planned(model_dir)
    assert (engine.shape.max_num_seqs, engine.shape.max_num_batched_tokens) == (1024, 8192)
    cost = EngineCost(tokens=TokenCurve(((1, 0.01), (100, 0.2))))
    kind = EngineType("m", device, "float32", "0.32.0", 64, 4096, 3000)
    file = tmp_path / "cost.json"
    file.write_text(render(CostFile(kind, Measured("2026-01-01T00:00:00Z", "test", 1.0), cost)))
    (engine,) = planned(model_dir, "--cost", str(file), "-tp", "2")
    assert (engine.shape.max_num_seqs, engine.shape.max_num_batched_tokens) == (num_seqs, 3000)
    sizes = ("--max-num-seqs", "7", "--max-num-batched-tokens", "1k")
    (engine,) = planned(model_dir, "--cost", str(file), *sizes)
    assert (engine.shape.max_num_seqs, engine.shape.max_num_batched_tokens) == (7, 1000)


def test_as_vllm_spells_it(model_dir: Path) -> None:
    """Underscores, `=`, unambiguous beginnings, and the model as first argument."""
    flags = parse(
        [str(model_dir), "--max_model_len=1K", "--served-model", "a", "b", "-tp", "2", "--task", "embed"]
    )
    assert (flags.model, flags.max_model_len, flags.tensor_parallel_size) == (str(model_dir), 1024, 2)
    assert flags.served_model_name == ("a", "b")
    assert flags.runner is Runner.POOLING
    assert not parse(["--no-enable-prefix-caching"]).enable_prefix_caching
    assert parse(["--framing", "arrays"]).framing is Framing.ARRAYS
    assert parse(["--lora-modules", "a=/x", '{"name": "b", "path": "/y"}']).lora_modules == {
        "a": "/x",
        "b": "/y",
    }


def test_environment(model_dir: Path) -> None:
    """What vLLM reads from its environment is read here too."""
    environ = {
        "VLLM_API_KEY": "secret",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
        "PYTHONHASHSEED": "7",
    }
    (engine,) = planned(model_dir, "--kv-events-config", json.dumps(EVENTS), **environ)
    assert engine.api_keys == ("secret",)
    assert engine.dev_mode
    assert engine.runtime_loras
    assert engine.events is not None
    assert not engine.events.int_hashes
    assert engine.hash_seed == "7"


def test_the_nixl_connector(model_dir: Path) -> None:
    """An engine that hands its blocks over says where they are by vLLM's own settings; a port must be one."""
    transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "e"})
    (engine,) = planned(model_dir, "--kv-transfer-config", transfer, VLLM_NIXL_SIDE_CHANNEL_PORT="5601")
    assert engine.nixl == Nixl("e", "localhost", 5601)
    assert engine.host_tier is None
    (other,) = planned(model_dir, "--kv-transfer-config", json.dumps(TRANSFER))
    assert other.nixl is None
    with pytest.raises(ConfigError, match="VLLM_NIXL_SIDE_CHANNEL_PORT is 'x'"):
        planned(model_dir, "--kv-transfer-config", transfer, VLLM_NIXL_SIDE_CHANNEL_PORT="x")


def test_sizes_follow_the_model(tmp_path: Path, model_dir: Path) -> None:
    """KV bytes and the longest context come from config.json; bytes of KV are blocks."""
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    token_bytes = 2 * 2 * 2 * 8 * 2
    (engine,) = planned(tmp_path, "--kv-cache-memory-bytes", str(token_bytes * 16 * 40))
    assert engine.shape.kv_bytes_per_token == token_bytes
    assert (engine.shape.num_blocks, engine.shape.max_model_len) == (40, 128)
    (engine,) = planned(tmp_path, "--dtype", "float32")
    assert engine.shape.kv_bytes_per_token == 2 * token_bytes


def test_costs(tmp_path: Path, model_dir: Path) -> None:
    """A cost file brings its coefficients and the sizes that they were measured with; `none` is free."""
    cost = EngineCost(tokens=TokenCurve(((1, 0.01), (100, 0.2))))
    kind = EngineType("m", "cpu", "float32", "0.32.0", 64, 4096, 2048)
    file = tmp_path / "cost.json"
    file.write_text(render(CostFile(kind, Measured("2026-01-01T00:00:00Z", "test", 1.0), cost)))
    (engine,) = planned(model_dir, "--cost", str(file))
    assert engine.cost == cost
    assert (engine.shape.block_size, engine.shape.kv_bytes_per_token) == (64, 4096)
    (engine,) = planned(model_dir, "--cost", "none")
    assert engine.cost == EngineCost()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--count", "0"], "--count"),
        (["--count", "257"], "1 to 256"),
        (["--port", "65534", "--count", "4"], "--port 65534 with --count 4 goes up to 65537.* up to 65532"),
        (["--count", "2", "--kv-events-config", LAST_PORT], "counted up"),
        (["--speed", "0"], "--speed"),
        (["--port", "70000"], "--port"),
        (["--port", "x"], "--port: 'x'; allowed: whole numbers from 0 to 65535"),
        (["--seed", "x"], "--seed: 'x'; allowed: whole numbers$"),
        (["--speed", "abc"], "--speed: 'abc'; allowed: numbers from 0.000001 to 1000000"),
        (["--speed", "inf"], "--speed: 'inf'; allowed"),
        (["--max-num-seqs", "1.5"], "--max-num-seqs: '1.5'; allowed: whole numbers from 1$"),
        (["--kv-cache-memory-bytes", "4GiB"], "bytes: '4GiB'; allowed: whole numbers from 1, also as 2k"),
        (["--max-model-len", "1e400"], "--max-model-len: '1e400'; allowed"),
        (["--max-model-len", "99999999999"], "blocks of 16 tokens, for a context of 99999999999, .*: up to"),
        (["--num-gpu-blocks-override", "4194305"], "4194305 blocks .*: up to 4194304"),
        (["--max-model-len", "1.5K"], "--max-model-len: '1.5K'; allowed"),
        (["--kv-cache-memory-bytes", "1"], "bytes 1 is room for 0 blocks of 16 tokens, .*: from 107"),
        (["--port", "0", "stray"], "'stray' belongs to no flag"),
        (["--enforce-eager", "x", "--port", "0", "stray"], "'stray' belongs to no flag"),
        (["--shared-dir", "/x"], "--shared-dir /x: no store is shared"),
        (["--kv-events-config", '{"enable_kv_cache_events": "yes"}'], "is 'yes', allowed: true, false"),
        (["--kv-events-config", '{"hwm": -1}'], "--kv-events-config: hwm is -1, allowed: 0 to"),
        (["--kv-events-config", '{"endpoint": 5}'], "endpoint is 5, allowed: a text"),
        (["--kv-events-config", '{"publisher": "nats"}'], "publisher is 'nats', allowed: null, zmq or null"),
        (["--kv-events-config", '{"end_point": "x"}'], "unknown field 'end_point'"),
        (["--kv-events-config", "[]"], "--kv-events-config: '\\[\\]'; allowed: a JSON object"),
        (["--kv-transfer-config", '{"kv_connector_extra_config": 5}'], "is 5, allowed: an object"),
        (["--kv-transfer-config", '{"x": NaN}'], "allowed: a JSON object"),
        (["--kv-events-config", "{"], "--kv-events-config"),
        (["--framing", "tuples"], "maps, arrays"),
        (["--runner", "draft"], "pooling"),
        (["--cost", "/no/such/file"], "/no/such/file"),
        (["--max-model-len", "2000", "--num-gpu-blocks-override", "10"], "--num-gpu-blocks-override"),
        (["--lora-modules", "a"], "NAME=PATH"),
        (["--kv-transfer-config", '{"kv_connector_extra_config": {"cpu_bytes_to_use": "x"}}'], "to_use"),
        (["--count", "2", "--kv-events-config", json.dumps({**EVENTS, "endpoint": "tcp://x"})], "tcp://x"),
    ],
)  # fmt: skip
def test_wrong_values(model_dir: Path, argv: list[str], named: str) -> None:
    """Refused in one line that names what is wrong."""
    with pytest.raises(ConfigError, match=named.replace("(", "\\(")):
        planned(model_dir, *argv)


def test_a_shared_directory_must_be_usable(tmp_path: Path, model_dir: Path) -> None:
    """It is made, tried and left without an entry; a file in its place, or no leave to write, is named."""
    argv = ("--kv-transfer-config", json.dumps(TRANSFER), "--shared-dir")
    planned(model_dir, *argv, str(tmp_path / "new" / "store"))
    assert [path.is_dir() for path in (tmp_path / "new" / "store").rglob("*")] == [True]
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", Path("/proc")):
        with pytest.raises(StoreError, match=f"--shared-dir {wrong} cannot be used"):
            planned(model_dir, *argv, str(wrong))


def test_values_of_unknown_flags_are_theirs(model_dir: Path) -> None:
    """What follows a flag of vLLM's that means nothing here is let be with it."""
    flags = parse([str(model_dir), "--enforce-eager", "--allowed-origins", "a", "b", "--port", "0", "-O3"])
    assert flags.ignored == ("--enforce-eager", "--allowed-origins", "-O3")


def test_free_steps_are_asked_for_by_name(tmp_path: Path, model_dir: Path) -> None:
    """A cost file without a curve is a mistake rather than an engine that takes no time."""
    kind = EngineType("m", "cpu", "float32", "0.32.0", 64, 4096, 2048)
    file = tmp_path / "cost.json"
    file.write_text(render(CostFile(kind, Measured("2026-01-01T00:00:00Z", "test", 1.0), EngineCost())))
    with pytest.raises(ConfigError, match=r"cost\.tokens is .*--cost none"):
        planned(model_dir, "--cost", str(file))


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_broken_tokenizer(tmp_path: Path, content: str) -> None:
    """The file is named, and that it is no tokenizer."""
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=f"--model: {tmp_path}/tokenizer.json is not a tokenizer: "):
        load_text(tmp_path, 100)


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag says what it means and what happens without it; variables of the environment are named."""
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("--block-size TOKENS of a KV block; default: 16,", "--max-num-seqs", "VLLM_SERVER_DEV_MODE"):
        assert text in shown
    assert all(action.help for action in _parser()._actions)
