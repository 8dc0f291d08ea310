"""`anbar up`: clean, check, prepare, start, run, stop."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from anbar.adapters.process.cleanup import clean_stale, make_scratch_dir, remove_scratch_dir
from anbar.adapters.process.proc import is_alive, send_signal
from anbar.adapters.process.state import (
    STATE_FILE,
    StackState,
    StateLock,
    current_boot,
    read_state,
    running,
    self_id,
    write_state,
)
from anbar.adapters.vllm.launch import ask
from anbar.apps.doctor.finding import Finding, Level
from anbar.apps.doctor.host import check_directory, check_ports
from anbar.apps.doctor.run import check_interpreter, check_slots, check_store, look_around
from anbar.apps.stack.models import locate_models
from anbar.apps.stack.placement import launched_entries, place
from anbar.apps.stack.plan import StackPlan, endpoint_of, plan_stack
from anbar.apps.stack.reporter import Reporter
from anbar.apps.stack.stack import Stack
from anbar.config.models import AnbarConfig
from anbar.core.errors import StackError

_MODELS_S = 30.0
"""For what the router serves: it has just said that it is ready, but the machine may be busy."""

Announce = Callable[[StackPlan, float], None]
"""Called once when all is ready: what runs, and the seconds it took."""

_OWN_NAMES = frozenset({"lock", "logs", "models", "router.yaml", "run", STATE_FILE, "store"})
"""What Anbar keeps in a state directory."""


async def up(config: AnbarConfig, environ: Mapping[str, str], reporter: Reporter, announce: Announce) -> None:
    """Run the stack until SIGINT or SIGTERM; a second one ends it at once.

    Returns after a clean stop. Raises AnbarError when something stood in the way or a part did not start;
    then everything that was started has been stopped again.
    """
    lock = _prepare_state_dir(config.state_dir)
    try:
        state_file = config.state_dir / STATE_FILE
        await asyncio.to_thread(_clean, state_file, reporter)
        scratch_dir = make_scratch_dir()
        try:
            endpoint = endpoint_of(config)
            write_state(state_file, StackState(self_id(), current_boot(), str(scratch_dir), endpoint))
            plan = await asyncio.to_thread(_plan, config, environ, reporter, scratch_dir)
            await _run(Stack(plan, reporter), plan, reporter, announce)
        finally:
            remove_scratch_dir(scratch_dir)
            state_file.unlink(missing_ok=True)
    finally:
        lock.release()


def _prepare_state_dir(state_dir: Path) -> StateLock:
    finding = check_directory("state_dir", state_dir, key="state_dir")
    if finding.level is Level.FAIL:
        raise StackError(f"{finding.detail}; {finding.fix}")
    for directory in (state_dir, state_dir / "logs", state_dir / "run"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if {path.name for path in state_dir.iterdir()} <= _OWN_NAMES:
        state_dir.chmod(0o700)  # others may have made it; a directory with other things in it keeps its mode
    lock = StateLock(state_dir)
    if not lock.acquire():
        holder = lock.holder()
        who = f"process {holder}" if holder is not None else "another process"
        raise StackError(
            f"a stack already runs on {state_dir} ({who}); stop it with "
            f"`anbar down --set state_dir={state_dir}`, "
            "or use another state_dir for a second one"
        )
    return lock


def _clean(state_file: Path, reporter: Reporter) -> None:
    """We hold the lock, so whoever wrote this file is gone."""
    state = read_state(state_file)
    if state is None:
        return
    reporter.note(f"the stack before (process {state.launcher.pid}) was killed; cleaning up after it")
    for line in clean_stale(state):
        reporter.note(line)
    state_file.unlink()


def _plan(
    config: AnbarConfig, environ: Mapping[str, str], reporter: Reporter, scratch_dir: Path
) -> StackPlan:
    _refuse(check_ports([("router", config.router.host, config.router.port)]))
    _refuse(check_store(config))
    if not launched_entries(config):
        return plan_stack(config, {}, python=None, scratch_dir=scratch_dir, environ=environ)
    machine, interpreter = look_around(config, environ)
    if interpreter is not None:
        _refuse([check_interpreter(interpreter, machine, needs_plugin=False)])
    models = locate_models(config, interpreter, environ, scratch_dir, reporter)
    cpu_build = interpreter is not None and interpreter.cpu_build
    slots = place(config, machine, cpu_build=cpu_build, models=models, scratch_dir=scratch_dir)
    failed = []
    for finding in check_slots(config, machine, interpreter, slots):
        if finding.level is Level.WARN:
            reporter.warn(f"{finding.topic}: {finding.detail}; {finding.fix}")
        elif finding.level is Level.FAIL:
            failed.append(f"{finding.topic}: {finding.detail}; fix: {finding.fix}")
    if failed:
        raise StackError("\n".join(["the stack cannot be started:", *(f"  {line}" for line in failed)]))
    python = interpreter.path if interpreter is not None else None
    return plan_stack(config, slots, python=python, scratch_dir=scratch_dir, environ=environ)


def _refuse(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.level is Level.FAIL:
            raise StackError(f"{finding.topic}: {finding.detail}; fix: {finding.fix}")


async def _run(stack: Stack, plan: StackPlan, reporter: Reporter, announce: Announce) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if asked.is_set():
            reporter.warn(f"{name} again: stopping at once")
            stack.stop_now()
        else:
            reporter.note(f"{name}: stopping (once more to stop at once)")
            asked.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, on_signal, number.name)
    life = asyncio.create_task(_live(stack, plan, announce))
    stop = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait((life, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        failed = life.done()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await stack.stop()
        for number in signals:
            loop.remove_signal_handler(number)
    if failed:
        life.result()


async def _live(stack: Stack, plan: StackPlan, announce: Announce) -> None:
    seconds = await stack.start()
    if not plan.models:  # attached engines only: their router knows by now what they serve
        models = await ask(plan.router.url, "/v1/models", _MODELS_S)
        cards = models.get("data") if isinstance(models, dict) else None
        names = [str(card["id"]) for card in cards or () if isinstance(card, dict) and "id" in card]
        plan = replace(plan, models=tuple(names))
    announce(plan, seconds)
    await stack.watch()


def down(state_dir: Path, wait: Callable[[], bool]) -> bool:
    """Ask the running stack to stop; False when none runs. `wait` is called until the stack has gone, and
    ends the waiting by returning False."""
    state = running(state_dir)
    if state is None:
        return False
    send_signal(state.launcher, signal.SIGTERM)
    while is_alive(state.launcher):
        if not wait():
            raise StackError(f"the stack (process {state.launcher.pid}) is still stopping")
    return True
