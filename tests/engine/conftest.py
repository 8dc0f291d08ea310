"""Real vLLM engines, shared by the tests of a session: a start costs half a minute and a core."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anbar.apps import interpreter, model
from tests.engine.engine import Engine, EngineConfig
from tests.ports import free_port

ROOT = Path(__file__).parents[2]

MARKERS = {
    "native": "host RAM offload of one engine",
    "shared": "two engines on one store",
    "tensor_parallel": "an engine of two worker processes",
    "disaggregation": "one engine computes prompts, another one answers",
    "stack": "`anbar up` while its parts are killed",
    "block_exact": "the engine model beside vLLM, block by block",
    "contract": "what the plugin relies on in vLLM, without an engine",
}


def pytest_configure(config: pytest.Config) -> None:
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
    script = Path(__file__).with_name("tiny_model.py")
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


def unique(name: str) -> str:
    """An engine_id that no other run on this machine uses."""
    return f"anbar-test-{os.getpid()}-{name}"
