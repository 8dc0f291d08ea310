"""Every engine of a configuration swapped for an emulated one: what `anbar up --emulated` runs. Pure."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from anbar.config.checks import check
from anbar.config.models import DEFAULT_MODEL, AnbarConfig, CacheMode, Device, EngineConfig, LaunchConfig
from anbar.config.problems import dotted
from anbar.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Emulation:
    """What the emulated engines have in common. `speed`: their time passes that many times faster, None: as
    ours. `cost`: the absolute path of a cost file, or `none` for steps that take no time; None: the
    emulator's own estimate of a GPU.

    Raises ConfigError for a speed that no clock can have.
    """

    speed: float | None = None
    cost: str | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and not (self.speed > 0 and math.isfinite(self.speed)):
            raise ConfigError(
                f"command line --speed: is {self.speed:g}; allowed: numbers above 0, such as 10"
            )

    def arguments(self, cost: str | None = None) -> tuple[str, ...]:
        """For `anbar emulate`; `cost` where nothing else is said of costs."""
        speed = () if self.speed is None else ("--speed", f"{self.speed:g}")
        cost = cost if self.cost is None else self.cost
        return (*speed, *(() if cost is None else ("--cost", cost)))

    def cost_file(self, given: Path | None) -> Path | None:
        """Where the router learns what to expect; `given` where nothing else is said of costs. No file holds
        for engines whose time passes faster."""
        if self.speed not in (None, 1.0):
            return None
        if self.cost is None:
            return given
        return Path(self.cost) if self.cost.startswith("/") else None


@dataclass(frozen=True, slots=True)
class Emulated:
    """The swapped configuration, and what had to be assumed of attached engines, a sentence each."""

    config: AnbarConfig
    assumptions: tuple[str, ...]


def emulate(config: AnbarConfig, emulation: Emulation, is_free: Callable[[int], bool]) -> Emulated:
    """`config` with every engine emulated, under the id that it has in `config`.

    A launched entry keeps all that it says but its device. An attached one gets a stand-in on a port for
    which `is_free` says yes, named after the entry's tokenizer. Raises ConfigError for what only real engines
    may be told.
    """
    ports = (port for port in _unclaimed_ports(config) if is_free(port))
    engines: list[EngineConfig] = []
    assumptions: list[str] = []
    for engine in config.engines:
        launch = engine.launch
        if launch is None:
            launch, assumption = _stand_in(engine, next(ports))
            assumptions.append(assumption)
        own = None if engine.cost_file is None or "--cost" in launch.args else str(engine.cost_file)
        emulated = {"device": Device.EMULATED, "args": (*launch.args, *emulation.arguments(own))}
        keys = ("api_key_env", "api_key_file", "events", "replay", "tokenizer")
        update = {
            **dict.fromkeys(keys),
            "launch": launch.model_copy(update=emulated),
            "cost_file": emulation.cost_file(engine.cost_file),
        }
        engines.append(engine.model_copy(update=update))
    if config.cache.mode is CacheMode.LMCACHE:
        assumptions.append("LMCache is not modelled: emulated engines keep KV on their device only")
    result = config.model_copy(update={"engines": tuple(engines)})
    for problem in check(result):
        raise ConfigError(f"command line --emulated: {dotted(problem.path)}: {problem.message}")
    return Emulated(result, tuple(assumptions))


def _unclaimed_ports(config: AnbarConfig) -> Iterator[int]:
    """Ports for stand-ins, from where launched engines have theirs: none that the configuration names."""
    claimed = {config.router.port}
    for engine in config.engines:
        if engine.launch is not None:
            claimed.update(range(engine.launch.port, engine.launch.port + engine.launch.count))
        if engine.url is not None:
            claimed.add(urlsplit(engine.url).port or 80)
    return (port for port in count(int(LaunchConfig.model_fields["port"].default)) if port not in claimed)


def _stand_in(engine: EngineConfig, port: int) -> tuple[LaunchConfig, str]:
    """What is known of an attached engine, and in words what was made of it. vLLM serves a model of the hub
    under its full name; a directory's last part is what Anbar calls it."""
    place = engine.url if engine.discover is None else f"those of {engine.discover.source}"
    who = f"{engine.name} stands in for {place}"
    if engine.tokenizer is None:
        launch = LaunchConfig(model=DEFAULT_MODEL, port=port)
        fix = f"engines[].tokenizer of {engine.name!r} would tell its model"
        return launch, f"{who}: assumed to serve {DEFAULT_MODEL!r}, since nothing here names its model; {fix}"
    is_directory = engine.tokenizer.startswith("/")
    served = Path(engine.tokenizer).name if is_directory else engine.tokenizer
    launch = LaunchConfig(model=engine.tokenizer, served_name=served, port=port)
    return launch, f"{who}: assumed to serve {served!r}, after its tokenizer {engine.tokenizer}"
