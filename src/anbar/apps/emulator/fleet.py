"""Emulated engines as a process: all of them start, serve until a signal, and end together."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from anbar.apps.emulator.engine import EmulatedEngine
from anbar.apps.emulator.flags import Flags
from anbar.apps.emulator.launch import plan
from anbar.apps.emulator.settings import EngineSettings
from anbar.apps.emulator.tiny_model import TINY_MODEL_DIR
from anbar.apps.model import models_dir
from anbar.config.models import DEFAULT_MODEL
from anbar.core.errors import ConfigError

Say = Callable[[str], None]


def run(flags: Flags, environ: Mapping[str, str], say: Say) -> None:
    """Serve until SIGINT or SIGTERM. `say` gets a line for each engine that listens, and for what was
    assumed."""
    if flags.ignored:
        say(f"without meaning here, ignored: {' '.join(dict.fromkeys(flags.ignored))}")
    uvloop.run(_serve(plan(flags, _model_dir(flags, environ, say), environ), say))


def _model_dir(flags: Flags, environ: Mapping[str, str], say: Say) -> Path:
    """Where the tokenizer is: as named, the small model's, or the built-in one."""
    if flags.model is not None and flags.model != DEFAULT_MODEL:
        named = Path(flags.model)
        if not named.is_dir():
            raise ConfigError(
                f"--model {flags.model} is not a directory here, and nothing is fetched: the emulator needs "
                "the directory of a model, with its tokenizer.json (weights are not read)"
            )
        return named
    small = models_dir(environ) / DEFAULT_MODEL
    if (small / "tokenizer.json").is_file():
        return small
    say(f"no tokenizer of {DEFAULT_MODEL} here: the built-in one takes its place, about a token per letter")
    return TINY_MODEL_DIR


async def _serve(engines: Sequence[EngineSettings], say: Say) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        # None is announced before all listen: one whose port is taken ends them all.
        running = [await stack.enter_async_context(EmulatedEngine(settings)) for settings in engines]
        for engine in running:
            say(f"emulated engine of {engine.settings.served_names[0]} on {engine.url}")
        await ended.wait()
