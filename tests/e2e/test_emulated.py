"""`anbar up --emulated`: the whole stack as it would run on GPUs, on engines that compute nothing."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from anbar.adapters.process.cleanup import clean_stale
from anbar.adapters.process.state import read_state
from anbar.core.cost import EngineCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured, render
from tests.e2e.stack import ANBAR, REPO, Stack, prose, run_stack, wait_until
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(600)

MODEL = "llama-3.1-8b-instruct"
ATTACHED = "http://10.255.255.1:8000"
"""An engine that is not there, and is not asked."""


def anbar(*args: str, cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    """A command beside the running stack."""
    return subprocess.run([*ANBAR, *args], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def config(directory: Path, **launch: Any) -> dict[str, Any]:
    """Two engines that would need GPUs, behind a router that is soon tired of waiting."""
    router_port, first, _ = free_ports(3)
    return {
        "state_dir": str(directory / "state"),
        "engines": [
            {
                "name": "gpu",
                "launch": {
                    "model": f"/models/{MODEL}",
                    "device": "cuda",
                    "tensor_parallel": 2,
                    "count": 2,
                    "port": first,
                    "block_size": 16,
                    "max_model_len": 8192,
                    "num_device_blocks": 1024,
                    **launch,
                },
            }
        ],
        "cache": {"mode": "shared", "host_bytes": "1GiB"},
        "router": {"port": router_port, "first_byte_timeout_s": 10.0, "connect_timeout_s": 60.0},
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two emulated engines, and a third that stands in for one attached by its address."""
    directory = tmp_path_factory.mktemp("fleet")
    made = config(directory)
    made["engines"].append({"name": "far", "url": ATTACHED, "tokenizer": f"/models/{MODEL}"})
    with run_stack(made, directory, ["--emulated"]) as running:
        yield running


@pytest.fixture(autouse=True)
def all_ready(request: pytest.FixtureRequest) -> None:
    """Before each test on the fleet all of its engines serve."""
    if "fleet" in request.fixturenames:
        stack: Stack = request.getfixturevalue("fleet")
        wait_until(lambda: stack.ready_engines() == {"gpu-0", "gpu-1", "far"}, 120, "all engines are ready")


def complete(fleet: Stack, prompt: str) -> tuple[str, int, int]:
    """Who answered, and the prompt's cached tokens as predicted and as reported."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
    reply = fleet.http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    headers = reply.headers
    return headers["x-anbar-engine"], int(headers["x-anbar-cached-tokens-predicted"]), cached


def test_what_is_shown(fleet: Stack, tmp_path: Path) -> None:
    """Status has the same columns as ever, the engines their ids, the attached one included; what had to be
    assumed was said before anything was started."""
    (tmp_path / "anbar.yaml").write_text(f"state_dir: {fleet.state_dir}\n")
    lines = anbar("status", cwd=tmp_path).stdout.splitlines()[1:]
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert {name: (row[1], row[5]) for name, row in rows.items()} == {
        "gpu-0": ("emulated", "ready"),
        "gpu-1": ("emulated", "ready"),
        "far": ("emulated", "ready"),
        "router": ("router", "ready"),
    }
    said = fleet.output.read_text()
    assert f"far stands in for {ATTACHED}: assumed to serve {MODEL!r}" in said
    assert f"no tokenizer of /models/{MODEL} is here" in said
    assert "3 of 3 engines emulated" in said
    assert {model.id for model in fleet.openai.models.list()} == {MODEL}
    doctor = anbar("doctor", cwd=tmp_path).stdout
    assert f"runs at {fleet.url}" in doctor


def test_a_prompt_returns_to_its_prefix(fleet: Stack) -> None:
    """The router predicts what the engine then reports, to the token."""
    first, predicted, cached = complete(fleet, prose(1, 200))
    assert (predicted, cached) == (0, 0)
    fleet.settle()
    again, predicted, cached = complete(fleet, prose(1, 200))
    assert again == first
    assert predicted == cached > 500


def test_a_prefix_outlives_its_engine(fleet: Stack) -> None:
    """kill -9: another engine, a process of its own, loads the prompt from the store that they share; the
    dead one is started again, cold, and finds it there too."""
    engine, _, _ = complete(fleet, prose(2, 200))
    fleet.settle()
    killed = fleet.engines()[engine]
    killed.kill()
    other, _, cached = complete(fleet, prose(2, 200))
    assert other != engine
    assert cached > 500
    wait_until(lambda: fleet.engines()[engine].pid not in (None, killed.pid), 120, "it is started again")
    wait_until(lambda: engine in fleet.ready_engines(), 120, "it serves again")
    body = {"model": MODEL, "prompt": prose(2, 200), "max_tokens": 4}
    direct = httpx.post(f"{killed.url}/v1/completions", json=body, timeout=60).json()
    assert direct["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_hung_engine(fleet: Stack) -> None:
    """SIGSTOP: of several requests side by side those that it got go elsewhere when they have waited long
    enough."""
    failures = fleet.metric("anbar_router_attempt_failures_total")
    pid = fleet.engines()["gpu-0"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda seed: complete(fleet, prose(seed, 200)), range(10, 16)))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "gpu-0" not in {engine for engine, _, _ in answers}
    assert fleet.metric("anbar_router_attempt_failures_total") > failures


def test_speed_cost_and_a_killed_launcher(tmp_path: Path) -> None:
    """The measured cost of an engine, a hundred times as fast: a minute of prompt in 0.6 s. Then the launcher
    is killed, and nothing of its stack stays."""
    curve = TokenCurve(((1, 0.03), (1001, 30.03)))
    measured = Measured("2026-01-01T00:00:00Z", "test", 0.0, ())
    engine = EngineType(MODEL, "test", "float16", "0.32.0", 16, 1024, 2048)
    cost = tmp_path / "cost.json"
    cost.write_text(render(CostFile(engine, measured, EngineCost(tokens=curve))))
    options = ["--emulated", "--speed", "100", "--cost", str(cost)]
    with run_stack(config(tmp_path, count=1), tmp_path, options) as stack:
        begin = time.monotonic()
        reply = stack.http.post(
            "/v1/completions", json={"model": MODEL, "prompt": [7] * 2000, "max_tokens": 1}
        )
        assert reply.status_code == 200, reply.text
        assert 0.59 < time.monotonic() - begin < 30
        members = [json.loads(Path(part["record"]).read_text())["members"] for part in stack.state()["parts"]]
        pids = [pid for found in members for pid, _ in found]
        assert len(pids) >= 2
        stack.process.kill()
        stack.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 120, "all is gone")
        state = read_state(stack.state_dir / "state.json")
        assert state is not None
        clean_stale(state)  # as the next `anbar up` would
        assert not Path(state.scratch_dir).exists()
