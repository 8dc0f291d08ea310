"""vLLM's whole API: the checks that the emulator must pass too.

`tests/e2e/test_contract.py` runs the suite on an engine as `anbar up` starts it. Here one engine has all that
there is: a key, an adapter and the loading of others, request ids in its answers, development endpoints,
and a cache so small that blocks are evicted; the other one embeds.
"""

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from anbar.config.models import LaunchConfig
from anbar.testing.engine_contract import ALL, EMBEDDING, Check, Target
from tests.contract import hold
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import SERVED_NAME, Engine, EngineConfig, plain

KEY = "contract-key"
ADAPTER = "adapter"


@dataclass(frozen=True)
class ToldConfig(EngineConfig):
    """An engine that is told more."""

    args: tuple[str, ...] = ()

    def launch(self) -> LaunchConfig:
        return super().launch().model_copy(update={"args": self.args, "env": dict(self.env)})


def write_adapter(model: Path, target: Path, rank: int = 8) -> None:
    """A small random LoRA adapter of the query projections (PEFT's files, safetensors' format)."""
    shape = json.loads((model / "config.json").read_text())
    width = shape["hidden_size"]
    rng = random.Random(1)
    data = bytearray()
    index: dict[str, object] = {}
    for layer in range(shape["num_hidden_layers"]):
        for part, size in (("A", [rank, width]), ("B", [width, rank])):
            values = struct.pack(f"<{rank * width}f", *(rng.gauss(0, 0.02) for _ in range(rank * width)))
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
            offsets = [len(data), len(data) + len(values)]
            index[name] = {"dtype": "F32", "shape": size, "data_offsets": offsets}
            data += values
    head = json.dumps(index).encode()
    target.mkdir()
    (target / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (target / "adapter_config.json").write_text(json.dumps(config))


@dataclass(frozen=True)
class Pair:
    generating: Engine
    embedding: Engine
    adapter: Path


@pytest.fixture(scope="module")
def engines(launch: Launcher, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One with every part of the API, and the same model, made to embed. Started together: a start keeps but
    one core busy."""
    adapter = tmp_path_factory.mktemp("lora") / ADAPTER
    write_adapter(smollm2, adapter)
    args = (
        *("--api-key", KEY, "--enable-request-id-headers"),
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={adapter}"),
    )
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    embedding = ("--runner", "pooling", "--convert", "embed")
    started = [
        launch(
            ToldConfig(unique(name), smollm2, plain(), num_blocks=24, max_model_len=512, args=said, env=told)
        )
        for name, said, told in (("api", args, env), ("pool", embedding, {}))
    ]
    yield Pair(*started, adapter)
    for engine in started:
        engine.terminate()


@pytest.fixture(scope="module")
def target(engines: Pair) -> Target:
    """The engine with every part of the API, for the checks alone, and what is to be known of it."""
    engine = engines.generating
    engine.wait_ready()
    with urlopen(f"{engine.url}/kv_event_sources", timeout=60) as answer:
        source = json.load(answer)["0"]
    return Target(
        engine.url,
        SERVED_NAME,
        api_key=KEY,
        alone=True,
        dev_mode=True,
        request_ids=True,
        timed=True,
        lora=ADAPTER,
        runtime_lora=str(engines.adapter),
        events=source["endpoint"],
        replay=source["replay_endpoint"],
    )


@pytest.fixture(scope="module")
def pooling(engines: Pair) -> Target:
    """The one that embeds."""
    engines.embedding.wait_ready()
    return Target(engines.embedding.url, SERVED_NAME, embeds=True)


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__.removeprefix("check_"))
def test_api_contract(target: Target, check: Check) -> None:
    """Shapes, refusals, streams, counters and events, as exactly as they can be said."""
    hold(check, target, {"check_counters_of_tiers"})


@pytest.mark.parametrize("check", EMBEDDING, ids=lambda check: check.__name__.removeprefix("check_"))
def test_embedding_contract(pooling: Target, check: Check) -> None:
    """The same for an engine that embeds."""
    hold(check, pooling)
