"""vLLM's whole API on one engine that has everything switched on: the checks that the emulator must pass too.

`tests/e2e/test_contract.py` runs the suite on an engine as `anbar up` starts it; this one has a key, an
adapter, request ids in its answers, development endpoints, and a cache so small that blocks are evicted.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from anbar.config.models import LaunchConfig
from anbar.testing.engine_contract import ALL, Target
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import SERVED_NAME, Engine, EngineConfig, plain

KEY = "contract-key"
ADAPTER = "adapter"


@dataclass(frozen=True)
class FullConfig(EngineConfig):
    """An engine with every part of the API."""

    adapter: Path = field(default=Path())

    def launch(self) -> LaunchConfig:
        args = (
            *("--api-key", KEY, "--enable-request-id-headers"),
            *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={self.adapter}"),
        )
        return super().launch().model_copy(update={"args": args})


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


@pytest.fixture(scope="module")
def target(launch: Launcher, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The engine, to itself."""
    adapter = tmp_path_factory.mktemp("lora") / ADAPTER
    write_adapter(smollm2, adapter)
    config = FullConfig(unique("api"), smollm2, plain(), num_blocks=24, max_model_len=512, adapter=adapter)
    engine: Engine = launch(config)
    engine.wait_ready()
    with urlopen(f"{engine.url}/kv_event_sources", timeout=10) as answer:
        source = json.load(answer)["0"]
    yield Target(
        engine.url,
        SERVED_NAME,
        source["endpoint"],
        source["replay_endpoint"],
        KEY,
        dev_mode=True,
        request_ids=True,
        lora=ADAPTER,
        alone=True,
    )
    engine.terminate()


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__.removeprefix("check_"))
def test_api_contract(target: Target, check: Callable[[Target], None]) -> None:
    """Shapes, refusals, streams, counters and events, as exactly as they can be said."""
    check(target)
