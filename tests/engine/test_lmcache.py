"""`cache.mode: lmcache`: vLLM's own connector to an LMCache server, as Anbar renders it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.apps import interpreter
from anbar.config.lmcache import LmcacheConfig
from anbar.config.models import CacheConfig, CacheMode
from tests.engine.conftest import ROOT, unique
from tests.engine.engine import LIMIT_S, Engine, EngineConfig, story
from tests.engine.lmcache_server import LmcacheServer
from tests.ports import free_port

pytestmark = pytest.mark.lmcache


@pytest.fixture(scope="module")
def lmcache_python(engine_python: Path) -> Path:
    """An interpreter with vLLM and LMCache: the checkout's own, or the one that is named."""
    own = ROOT / ".venv-lmcache" / "bin" / "python"
    python = engine_python if interpreter.PYTHON_VARIABLE in os.environ else own
    if interpreter.inspect(python, "tests").lmcache is None:
        pytest.skip(f"{python} has no LMCache: it was named by {interpreter.PYTHON_VARIABLE}")
    return python


@pytest.fixture(scope="module")
def server(lmcache_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An LMCache server on loopback; its request port."""
    server = LmcacheServer(lmcache_python, tmp_path_factory.mktemp("lmcache") / "server.log")
    try:
        server.start()
        yield server.port
    finally:
        server.stop()


def test_a_prefix_comes_back_from_lmcache(
    lmcache_python: Path, server: int, smollm2: Path, tmp_path: Path
) -> None:
    """What the device has forgotten is loaded from the server: nine tenths of the prompt, the same text."""
    cache = CacheConfig(mode=CacheMode.LMCACHE, lmcache=LmcacheConfig(server=f"127.0.0.1:{server}"))
    config = EngineConfig(unique("lm"), smollm2, cache, num_blocks=96)
    engine = Engine(lmcache_python, config, free_port(), tmp_path / "engine.log")
    engine.start()
    try:
        engine.wait_ready()
        first = engine.complete(story(1))
        deadline_s = time.monotonic() + LIMIT_S
        while True:  # storing is done behind the answer
            engine.forget()
            again = engine.complete(story(1))
            assert again.text == first.text
            if again.cached > 0.9 * again.prompt_tokens:
                break
            assert time.monotonic() < deadline_s, engine.log_tail()
        assert first.cached == 0
    finally:
        engine.kill()
