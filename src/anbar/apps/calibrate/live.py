"""Calibration of an engine behind a URL: joins client, campaign and machine."""

import os
import random
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import urlsplit

from anbar.apps.calibrate.campaign import Plan, Progress
from anbar.apps.calibrate.client import EngineClient
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.prompts import TEXT, Prompts
from anbar.apps.calibrate.run import Calibration, Session, calibrate
from anbar.apps.clock import SystemClock
from anbar.apps.machine import read_machine
from anbar.core.errors import ConfigError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def calibrate_url(
    url: str, key: str | None, given: Given, plan: Plan, progress: Progress
) -> Calibration:
    """Measure the engine at `url`, which must be idle. Raises ConfigError and MeasureError."""
    async with aclosing(EngineClient(url, key)) as client:  # which checks the address before all else
        given = replace(given, device=given.device or device_of(url, os.environ))
        facts = await client.facts()
        prompts = Prompts(await client.tokenize(TEXT), random.Random())
        session = Session(prompts, SystemClock(), progress)
        return await calibrate(client, facts, given, plan, session)


def device_of(url: str, environ: Mapping[str, str]) -> str:
    """The processor of an engine: cpu, where it runs on this machine and there is no other."""
    if urlsplit(url).hostname not in _LOOPBACK:
        where = "runs on another machine"
    elif read_machine(environ).gpus:
        where = "may run on this machine's CPU or on its GPU"
    else:
        return "cpu"
    raise ConfigError(f"{url} {where}: say on what, --given device=NAME (cpu, or the GPU's name)")


def read_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    """The API key in the environment variable `name`, without the blanks around it."""
    if name is None:
        return None
    key = environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable() or not key or " " in key:
        raise ConfigError(f"command line --api-key-env {name}: it is not set, or not one word of ASCII")
    return key
