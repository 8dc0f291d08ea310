"""Real vLLM engines, shared by the tests of a session: a start costs half a minute and a core."""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from anbar.apps import interpreter, model
from anbar.config.tenants import TenantsConfig
from tests.engine.engine import Engine, EngineConfig, shared
from tests.engine.fault_record import FaultRecord
from tests.ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

MARKERS = {
    "native": "host RAM offload of one engine",
    "shared": "two engines on one store",
    "lmcache": "an engine and an LMCache server",
    "faults": "stores that are damaged and taken away",
    "tensor_parallel": "an engine of two worker processes",
    "disaggregation": "one engine computes prompts, another one answers",
    "stack": "`anbar up` while its parts are killed",
    "block_exact": "the engine model beside vLLM, block by block",
    "contract": "what the plugin relies on in vLLM, without an engine",
}


LANES = (
    (
        *("test_native", "test_disaggregation", "test_tenants", "test_shared"),
        *("test_stack", "test_replicated", "test_lmcache"),
    ),
    (
        *("test_api_contract", "test_tensor_parallel", "test_block_exact", "test_recording"),
        *("test_tokens", "test_vllm_contract", "test_kv_payloads", "test_nixl_handshake"),
    ),
)
"""Modules that one process runs in this order, beside the other's; those that are not named come last in the
second lane. What keeps one core busy, as the start of an engine does, runs beside what wants both. Modules
that share engines stand side by side, so that no more than four engines take memory at once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of this directory in the order of `LANES`."""
    items.sort(key=lambda item: _place(item.path) if item.path.parent == HERE else (-1, 0))


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """What `-n 2` deals out are the lanes."""
    return Lanes(config, log)


class Lanes(LoadScopeScheduling):
    """Gives a whole lane to one process (pytest-xdist, "loadscope" with a scope of one's own)."""

    def _split_scope(self, nodeid: str) -> str:
        return f"lane {_place(Path(nodeid.partition('::')[0]))[0]}"


def _place(path: Path) -> tuple[int, int]:
    """A module's lane, and its place there."""
    places = ((lane, names.index(path.stem)) for lane, names in enumerate(LANES) if path.stem in names)
    return next(places, (len(LANES) - 1, len(LANES[-1])))


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("ANBAR_FAULTS") == "all":
        config.pluginmanager.register(FaultRecord())
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter that has vLLM."""
    path, _ = interpreter.choose(os.environ)
    return path


@pytest.fixture(scope="session")
def smollm2(engine_python: Path) -> Path:
    """The small model's directory; unpacked once per checkout, about 30 s."""
    found = interpreter.inspect(engine_python, "tests")
    return model.ensure_default(found, model.models_dir(os.environ), lambda text: None)


@pytest.fixture(scope="session")
def tiny(engine_python: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose heads two workers can share."""
    target = tmp_path_factory.mktemp("tiny")
    script = Path(__file__).with_name("random_model.py")
    subprocess.run([engine_python, script, smollm2, target], check=True, capture_output=True, timeout=300)
    return target


@pytest.fixture(scope="session")
def recordings(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a recording of every scenario of batches.py, NAME.json.gz: one and a half minutes."""
    made = tmp_path_factory.mktemp("recordings")
    command = [engine_python, "-m", "tests.engine.recording", "--out", made]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return made


Launcher = Callable[[EngineConfig], Engine]


@pytest.fixture(scope="session")
def launch(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Starts engines; whatever still runs at the end of the session is killed."""
    logs = tmp_path_factory.mktemp("logs")
    engines: list[Engine] = []

    def start(config: EngineConfig) -> Engine:
        engine = Engine(engine_python, config, free_port(), logs / f"{config.name}-{len(engines)}.log")
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.kill()


SEALED = "sealed"
"""A tenant of the pair's engines whose blocks are encrypted in the store."""
TENANTS = TenantsConfig.model_validate(
    {"header": "x-tenant", "by_name": {SEALED: {}}, "scopes": {SEALED: {"encrypt": True}}}
)


@dataclass(frozen=True)
class StorePair:
    """Two engines on one store, which answer. Data keys are beside the store's directory."""

    first: Engine
    second: Engine
    store: Path


@pytest.fixture(scope="session")
def store_pair(
    launch: Launcher, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], StorePair]:
    """Gives the pair of the session; another one when one of it has ended."""
    pairs: list[StorePair] = []

    def give() -> StorePair:
        if not pairs or not (pairs[-1].first.is_running and pairs[-1].second.is_running):
            store = tmp_path_factory.mktemp("pair") / "store"
            engines = [
                launch(
                    EngineConfig(
                        unique(f"{name}{len(pairs)}"),
                        smollm2,
                        shared(store),
                        num_blocks=96,
                        tenants=TENANTS,
                        state_dir=store.parent,
                    )
                )
                for name in ("first", "second")
            ]
            pairs.append(StorePair(*engines, store))
        pairs[-1].first.wait_ready()
        pairs[-1].second.wait_ready()
        return pairs[-1]

    return give


def unique(name: str) -> str:
    """An engine_id that no other run on this machine uses."""
    return f"anbar-test-{os.getpid()}-{name}"
