"""The routers that people run today, each in an environment of its own: how they are installed and started.

    python -m benchmarks.peers install [NAME…]     # needs the network; a minute or two with uv, more with pip

They go to `.bench/peers/<name>` (ANBAR_BENCH_PEERS: elsewhere), never into our own environment. The router of
production-stack is on no package index: ANBAR_PRODUCTION_STACK names a checkout of
https://github.com/vllm-project/production-stack. What is not installed is absent from the results and named.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare_engine import MODEL

CHECKOUT_VARIABLE = "ANBAR_PRODUCTION_STACK"
_ROOT = Path(__file__).parent.parent


def directory() -> Path:
    named = os.environ.get("ANBAR_BENCH_PEERS")
    return Path(named) if named else _ROOT / ".bench" / "peers"


@dataclass(frozen=True)
class Start:
    """What a router is started with."""

    python: str
    port: int
    metrics_port: int
    engines: Sequence[str]
    scratch: Path
    """A directory for a file of configuration."""


@dataclass(frozen=True)
class Peer:
    """A router in a policy. `package` is what pip installs, or None for a checkout."""

    name: str
    environment: str
    package: str | None
    start: Callable[[Start], list[str]]
    is_rust: bool = False

    @property
    def python(self) -> Path:
        return directory() / self.environment / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return self.python.exists()


def _rust(module: str, policy: str, *more: str) -> Callable[[Start], list[str]]:
    def argv(start: Start) -> list[str]:
        where = [
            "--host",
            "127.0.0.1",
            "--port",
            str(start.port),
            "--prometheus-port",
            str(start.metrics_port),
        ]
        engines = ["--worker-urls", *start.engines]
        return [start.python, "-m", module, *more, *where, *engines, "--policy", policy]

    return argv


def _production_stack(policy: str) -> Callable[[Start], list[str]]:
    def argv(start: Start) -> list[str]:
        engines = ["--static-backends", ",".join(start.engines)]
        models = ["--static-models", ",".join(MODEL for _ in start.engines)]
        discovery = ["--service-discovery", "static", *engines, *models]
        where = ["--host", "127.0.0.1", "--port", str(start.port)]
        return [start.python, "-m", "vllm_router.app", *where, *discovery, "--routing-logic", policy]

    return argv


def _litellm(start: Start) -> list[str]:
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{engine}/v1", "api_key": "none"},
        }
        for engine in start.engines
    ]
    path = start.scratch / "litellm.yaml"
    path.write_text(json.dumps({"model_list": models}))
    command = str(Path(start.python).with_name("litellm"))
    return [start.python, command, "--config", str(path), "--host", "127.0.0.1", "--port", str(start.port)]


PEERS = (
    Peer(
        "vllm-router cache_aware",
        "vllm-router",
        "vllm-router==0.1.17",
        _rust("vllm_router.launch_router", "cache_aware"),
        is_rust=True,
    ),
    Peer(
        "vllm-router round_robin",
        "vllm-router",
        "vllm-router==0.1.17",
        _rust("vllm_router.launch_router", "round_robin"),
    ),
    Peer(
        "sglang-router cache_aware",
        "sglang-router",
        "sglang-router==0.3.2",
        _rust("sglang_router.launch_router", "cache_aware"),
        is_rust=True,
    ),
    Peer(
        "sglang-router round_robin",
        "sglang-router",
        "sglang-router==0.3.2",
        _rust("sglang_router.launch_router", "round_robin"),
    ),
    Peer("smg cache_aware", "smg", "smg==1.13.0", _rust("smg.cli", "cache_aware", "launch"), is_rust=True),
    Peer("smg round_robin", "smg", "smg==1.13.0", _rust("smg.cli", "round_robin", "launch")),
    Peer("production-stack prefixaware", "production-stack", None, _production_stack("prefixaware")),
    Peer("production-stack roundrobin", "production-stack", None, _production_stack("roundrobin")),
    Peer("litellm simple-shuffle", "litellm", "litellm[proxy]==1.81.0", _litellm),
)


def install(names: Sequence[str]) -> None:
    """Make the environments; one that fails is said so and left out."""
    packages = {peer.environment: peer.package for peer in PEERS}
    for name in names or packages:
        package = packages[name] or os.environ.get(CHECKOUT_VARIABLE)
        if package is None:
            print(f"{name}: left out, {CHECKOUT_VARIABLE} names no checkout")
            continue
        print(f"{name}: {_install(name, package)}")


def _install(name: str, package: str) -> str:
    place = directory() / name
    python = os.environ.get("ANBAR_BENCH_PYTHON", sys.executable)
    uv = shutil.which("uv")
    pip = (
        [uv, "pip", "install", "--python"]
        if uv
        else [str(place / "bin/python"), "-m", "pip", "install", "--no-input"]
    )
    target = [str(place / "bin/python")] if uv else []
    # A copy of a checkout without its history has no version of its own.
    environ = os.environ | {
        "SETUPTOOLS_SCM_PRETEND_VERSION": os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION", "0.0")
    }
    try:
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([*pip, *target, package], check=True, env=environ)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(place, ignore_errors=True)
        return f"not installed: {error}"
    return f"installed {package}"


def versions() -> dict[str, str]:
    """Version of each environment that is there, "absent" of the others."""
    found = {}
    for peer in PEERS:
        name = "vllm-router" if peer.environment == "production-stack" else peer.environment
        ask = f"import importlib.metadata as m; print(m.version({name!r}))"
        if peer.environment in found:
            continue
        if not peer.is_installed:
            found[peer.environment] = "absent"
            continue
        asked = subprocess.run([str(peer.python), "-c", ask], capture_output=True, text=True, check=False)
        found[peer.environment] = asked.stdout.strip() or "unknown"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["install", "list"])
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.command == "install":
        install(options.names)
    for name, version in versions().items():
        print(f"{name}: {version}")


if __name__ == "__main__":
    main()
