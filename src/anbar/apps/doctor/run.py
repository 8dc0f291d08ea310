"""All checks of a configuration on this machine, in the order in which a user would meet the trouble."""

import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from anbar.adapters.process.state import running
from anbar.apps.doctor.finding import Finding, Level, fail, ok
from anbar.apps.doctor.host import (
    check_cpu,
    check_directory,
    check_memory,
    check_ports,
    check_shm,
    memory_need,
)
from anbar.apps.doctor.model import check_model, weights_bytes
from anbar.apps.doctor.remote import check_engine
from anbar.apps.interpreter import Interpreter, choose, complaint, inspect
from anbar.apps.machine import Machine, read_machine
from anbar.apps.model import models_dir
from anbar.apps.stack.placement import Slots, launched_entries, place
from anbar.config.models import DEFAULT_MODEL, AnbarConfig, CacheMode
from anbar.config.render import needs_plugin, store_settings
from anbar.core.errors import AnbarError


def diagnose(config: AnbarConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at everything; changes nothing. Network checks wait a few seconds at most."""
    yield ok("anbar", f"{version('anbar')} in Python {platform.python_version()} at {sys.executable}")
    yield check_directory("state_dir", config.state_dir, key="state_dir")
    yield from check_store(config)
    stack = running(config.state_dir)
    if stack is not None:
        yield ok("stack", f"runs at {stack.endpoint} (process {stack.launcher.pid}): nothing to start")
    else:
        yield from _check_launched(config, environ)
        yield from check_ports([("router", config.router.host, config.router.port)])
    for engine in config.engines:
        if engine.url is not None:
            yield from check_engine(engine, environ)


def check_store(config: AnbarConfig) -> Iterator[Finding]:
    """The directory of the shared store; only launched engines open it. Also made by `anbar up`: an engine
    would need minutes to fail at it."""
    if launched_entries(config) and config.cache.mode is CacheMode.SHARED:
        store = store_settings(config.cache.store, config.state_dir)
        yield check_directory("store", Path(store["path"]), key="cache.store.path")


def _check_launched(config: AnbarConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    if not launched_entries(config):
        return
    machine = read_machine(environ)
    try:
        interpreter = inspect(*choose(environ))
        vllm = check_interpreter(interpreter, machine, needs_plugin=False)
        if vllm.level is Level.FAIL:
            yield vllm
            return
        models = {
            launch.model: _model_place(launch.model, environ)
            for entry in launched_entries(config)
            if (launch := entry.launch) is not None
        }
        slots = place(
            config, machine, cpu_build=interpreter.cpu_build, models=models, scratch_dir=Path("/tmp")
        )
    except AnbarError as error:
        what, _, fix = str(error).partition("; ")
        yield fail("engines", what, fix)
        return
    yield from check_slots(config, machine, interpreter, slots)


def check_interpreter(interpreter: Interpreter, machine: Machine, *, needs_plugin: bool) -> Finding:
    """Whether engines can be launched with it; without this nothing else about them can be said."""
    problem = complaint(interpreter, needs_plugin=needs_plugin, on_gpu=bool(machine.gpus))
    if problem is not None:
        what, _, fix = problem.partition("; fix: ")
        return fail("vLLM", what, fix)
    return ok("vLLM", f"{interpreter.vllm} in {interpreter.path} ({interpreter.origin})")


def check_slots(
    config: AnbarConfig, machine: Machine, interpreter: Interpreter, slots: Slots
) -> Iterator[Finding]:
    """Checks of what is about to be launched: also what `anbar up` does before it starts anything."""
    plugin = any(needs_plugin(config.cache, slot.device) for group in slots.values() for slot in group)
    vllm = check_interpreter(interpreter, machine, needs_plugin=plugin)
    yield vllm
    if vllm.level is Level.FAIL:
        return
    yield from check_cpu(machine, slots)
    need = 0
    for entry in launched_entries(config):
        launch = entry.launch
        assert launch is not None, "launched entries have a launch"
        group = slots[entry.name]
        if _is_unpacked(group[0].model):
            yield from check_model(launch, config.cache, group[0])
        else:
            yield ok("model", f"{launch.model} will be unpacked from its package into {group[0].model}")
        need += sum(memory_need(launch, slot, config, weights_bytes(slot.model)) for slot in group)
    yield check_memory(machine, need)
    yield check_shm(machine, config, slots)
    yield from check_ports([(slot.id, "127.0.0.1", slot.port) for group in slots.values() for slot in group])


def _model_place(model: str, environ: Mapping[str, str]) -> str:
    return str(models_dir(environ) / model) if model == DEFAULT_MODEL else model


def _is_unpacked(model: str) -> bool:
    return not (model.endswith(f"/{DEFAULT_MODEL}") and not Path(model).exists())
