"""Everything `anbar up` will do, decided before anything is started."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anbar.adapters.process.guarded import ChildSpec
from anbar.apps.stack.part import PartSpec
from anbar.apps.stack.placement import Slots, is_emulated, launched_entries, region_file
from anbar.config.load import ENVIRONMENT
from anbar.config.models import AnbarConfig, Device, LaunchConfig, Restart
from anbar.config.render import EngineSlot, engine_command, router_config, tier_settings

ENGINE_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: vLLM 0.32 ends within a second, more when it writes out."""
_ROUTER_MARGIN_S = 5.0
_ROUTER_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class StackPlan:
    """Parts to start, engines first. `router_file` is the content of the router's own anbar.yaml."""

    state_dir: Path
    scratch_dir: Path
    engines: tuple[PartSpec, ...]
    router: PartSpec
    router_file: Mapping[str, Any]
    models: tuple[str, ...]
    """Names that clients can use, of launched engines."""

    @property
    def router_yaml(self) -> Path:
        return _router_yaml(self.state_dir)


def plan_stack(
    config: AnbarConfig, slots: Slots, *, python: Path | None, scratch_dir: Path, environ: Mapping[str, str]
) -> StackPlan:
    """`python` runs vLLM; None when no engine needs it. `environ` is what children inherit."""
    tier = tier_settings(config)
    engines: list[PartSpec] = []
    models: dict[str, None] = {}
    for entry in launched_entries(config):
        launch = entry.launch
        assert launch is not None, "launched entries have a launch"
        interpreter = Path(sys.executable) if is_emulated(entry) else python
        assert interpreter is not None, "vLLM needs an interpreter"
        for slot in slots[entry.name]:
            via = config.router.split.via
            command = engine_command(interpreter, launch, config.cache, slot, tier, via)
            path = f"{interpreter.parent}:{environ.get('PATH', '')}"  # compilers and tools beside it
            child = _child(config, slot.id, command.argv, {**environ, "PATH": path, **command.env})
            engines.append(_engine_part(config, launch, slot, child))
            models[slot.served_name] = None
    return StackPlan(
        state_dir=config.state_dir,
        scratch_dir=scratch_dir,
        engines=tuple(engines),
        router=_router_part(config, environ),
        router_file=router_config(config, slots, config.state_dir),
        models=tuple(models),
    )


def _router_yaml(state_dir: Path) -> Path:
    return state_dir / "router.yaml"


def endpoint_of(config: AnbarConfig) -> str:
    """Where a client on this machine reaches the router."""
    host = config.router.host
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{config.router.port}"


def _engine_part(config: AnbarConfig, launch: LaunchConfig, slot: EngineSlot, child: ChildSpec) -> PartSpec:
    emulated = slot.device is Device.EMULATED
    return PartSpec(
        kind="emulated" if emulated else "engine",
        child=child,
        url=slot.url,
        ready_path="/health",
        ready_timeout_s=launch.ready_timeout_s,
        restart=launch.restart,
        shm=(region_file(slot),) if config.cache.has_host_tier and not emulated else (),
    )


def _router_part(config: AnbarConfig, environ: Mapping[str, str]) -> PartSpec:
    file = _router_yaml(config.state_dir)
    argv = (sys.executable, "-m", "anbar.cli.main", "router", "--config", str(file))
    # The file says it all: variables that override it were applied when it was written.
    env = {key: value for key, value in environ.items() if key not in ENVIRONMENT}
    child = _child(config, "router", argv, env, config.router.drain_timeout_s + _ROUTER_MARGIN_S)
    return PartSpec("router", child, endpoint_of(config), "/ready", _ROUTER_READY_S, Restart.ON_FAILURE)


def _child(
    config: AnbarConfig,
    name: str,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    grace_s: float = ENGINE_GRACE_S,
) -> ChildSpec:
    return ChildSpec(
        name=name,
        argv=argv,
        env=env,
        log=config.state_dir / "logs" / f"{name}.log",
        record=config.state_dir / "run" / f"{name}.json",
        grace_s=grace_s,
    )
