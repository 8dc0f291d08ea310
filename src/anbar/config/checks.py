"""What must agree between the values of a configuration. Pure; each check yields its problems."""

from collections import Counter
from collections.abc import Iterator

from anbar.config.discover import DiscoverConfig, Records
from anbar.config.exchange_checks import check_exchange
from anbar.config.managed import EMULATED_ARGS, MANAGED_ARGS, MANAGED_ENV, managed_flag
from anbar.config.models import AnbarConfig, Device, EngineConfig, LaunchConfig
from anbar.config.problems import KeyPath, Problem
from anbar.config.roles import check_roles
from anbar.config.scope_rules import check_mode
from anbar.config.sizes import format_size
from anbar.config.split import SplitVia, nixl_port
from anbar.config.store_checks import check_store
from anbar.config.tenants import check_tenants

MIN_HOST_BYTES = 16 * 1024**2
"""Below this no known model's chunk fits a few times; the exact need of the model is checked by doctor."""

CPU_BLOCK_MULTIPLE = 32
"""vLLM's CPU attention takes only multiples of this as block size (v1/attention/backends/cpu_attn.py)."""


def check(config: AnbarConfig) -> Iterator[Problem]:
    """All problems between values of `config`."""
    for index, engine in enumerate(config.engines):
        yield from _engine(engine, ("engines", index))
    yield from _names(config)
    yield from _ports(config)
    yield from _cache(config)
    yield from check_store(config.cache.store)
    yield from _targets(config)
    yield from _self_check(config)
    yield from check_roles(config)
    yield from check_exchange(config)
    if config.tenants is not None:
        yield from check_tenants(config.tenants)
        yield from check_mode(config.tenants, config.cache)


def engine_ids(engine: EngineConfig) -> list[str]:
    """The ids of the engines that one entry stands for: `<name>-0`, … when launched, `<name>` when attached
    or standing in for an attached one. For engines that are found it is their name as a group."""
    launch = engine.launch
    attached = engine.url is not None or engine.discover is not None
    if launch is None or (attached and launch.device is Device.EMULATED):
        return [engine.name]
    return [f"{engine.name}-{index}" for index in range(launch.count)]


def _engine(engine: EngineConfig, path: KeyPath) -> Iterator[Problem]:
    attached = [key for key in ("url", "discover") if getattr(engine, key) is not None]
    if engine.launch is None and not attached:
        ways = "`url` (one that runs already) or `discover` (those that are listed elsewhere)"
        yield Problem(path, f"needs `launch` (start an engine here), {ways}")
    if len(attached) > 1:
        yield Problem((*path, "discover"), "cannot stand beside `url`: keep one")
    if engine.launch is not None and attached:
        if engine.launch.device is not Device.EMULATED:
            text = "cannot stand beside `launch`: an engine is started here or attached"
            yield Problem((*path, attached[0]), text)
        elif engine.launch.count > 1:
            text = f"is for one engine beside `{attached[0]}`: it stands in for that"
            yield Problem((*path, "launch", "count"), text)
    if engine.discover is not None:
        yield from _discover(engine.discover, (*path, "discover"))
    else:
        for key in ("events", "replay"):
            if "{host}" in (text := getattr(engine, key) or "") or "{port}" in text:
                yield Problem((*path, key), "may hold {host} and {port} only beside `discover`")
    if engine.api_key_env is not None and engine.api_key_file is not None:
        yield Problem((*path, "api_key_file"), "cannot stand beside `api_key_env`: keep one")
    if engine.launch is not None:
        for key in ("api_key_env", "api_key_file", "events", "replay", "tokenizer"):
            if getattr(engine, key) is not None:
                yield Problem((*path, key), "is only for engines with `url`: a launched engine's is known")
        yield from _launch(engine.launch, (*path, "launch"))


def _discover(discover: DiscoverConfig, path: KeyPath) -> Iterator[Problem]:
    if (discover.file is None) is (discover.dns is None):
        yield Problem(path, "needs either `file` or `dns`")
        return
    if discover.file is not None:
        for key in ("records", "port", "nameserver", "empty_grace_s"):
            if getattr(discover, key) != DiscoverConfig.model_fields[key].default:
                yield Problem((*path, key), "is only for `dns`")
    elif discover.records is Records.SRV:
        if discover.port is not None:
            yield Problem((*path, "port"), "is only for `records: a` and `aaaa`: each SRV record has its own")
    elif discover.port is None:
        yield Problem((*path, "port"), f"is required with `records: {discover.records.value}`")


def _launch(launch: LaunchConfig, path: KeyPath) -> Iterator[Problem]:
    for index, argument in enumerate(launch.args):
        flag = managed_flag(argument)
        if flag is not None:
            yield Problem((*path, "args", index), f"{flag} is not allowed here: {MANAGED_ARGS[flag]}")
        own = argument.split("=", 1)[0] if launch.device is Device.EMULATED else ""
        if own in EMULATED_ARGS:
            yield Problem((*path, "args", index), f"{own} is not allowed here: {EMULATED_ARGS[own]}")
    for name in launch.env:
        if name in MANAGED_ENV:
            yield Problem((*path, "env", name), f"is not allowed here: {MANAGED_ENV[name]}")
    last_port = launch.port + launch.count - 1
    if last_port > 65535:
        yield Problem(
            (*path, "port"), f"{launch.count} engines from {launch.port} need ports up to {last_port}"
        )
    size = launch.block_size
    if launch.device is Device.CPU and size is not None and size % CPU_BLOCK_MULTIPLE:
        yield Problem(
            (*path, "block_size"), f"is {size}; allowed on a cpu: multiples of {CPU_BLOCK_MULTIPLE}"
        )


def _names(config: AnbarConfig) -> Iterator[Problem]:
    ids = Counter(engine_id for engine in config.engines for engine_id in engine_ids(engine))
    urls: set[str] = set()
    for index, engine in enumerate(config.engines):
        twice = [engine_id for engine_id in engine_ids(engine) if ids[engine_id] > 1]
        if twice:
            yield Problem(("engines", index, "name"), f"two engines would be called {twice[0]!r}")
        if engine.url is not None:
            url = engine.url.rstrip("/")
            if url in urls:
                yield Problem(("engines", index, "url"), "is the address of another engine too")
            urls.add(url)


def _ports(config: AnbarConfig) -> Iterator[Problem]:
    taken = {config.router.port: "the router"}
    nixl = config.router.split.via is SplitVia.NIXL
    for index, engine in enumerate(config.engines):
        if engine.launch is None:
            continue
        for offset, engine_id in enumerate(engine_ids(engine)):
            port = engine.launch.port + offset
            needs = {port: engine_id}
            if nixl:
                needs[nixl_port(port)] = f"NIXL of {engine_id}"
            for needed, who in needs.items():
                if needed in taken:
                    where: KeyPath = ("engines", index, "launch", "port")
                    yield Problem(where, f"gives {who} the port {needed}, which {taken[needed]} has")
                taken[needed] = who


def _cache(config: AnbarConfig) -> Iterator[Problem]:
    cache = config.cache
    if cache.has_host_tier and cache.host_bytes < MIN_HOST_BYTES:
        need = f"needs at least {format_size(MIN_HOST_BYTES)} with cache.mode {cache.mode}"
        yield Problem(("cache", "host_bytes"), f"is {format_size(cache.host_bytes)}; {need}")


def _targets(config: AnbarConfig) -> Iterator[Problem]:
    known = [engine_id for engine in config.engines for engine_id in engine_ids(engine)]
    names = config.router.models
    for name, targets in names.items():
        path: KeyPath = ("router", "models", name)
        if not any(target.weight > 0 for target in targets):
            yield Problem(path, "has no target with a weight above 0")
        for index, target in enumerate(targets):
            if target.model not in (served := [each.model for each in names.get(target.model, (target,))]):
                text = f"is {target.model!r}, a name of router.models itself, and those are looked up once"
                yield Problem(
                    (*path, index, "model"), f"{text}; allowed: served models ({', '.join(served)})"
                )
            for place, engine in enumerate(target.engines):
                if engine not in known:
                    text = f"is {engine!r}, which is no engine's id; allowed: {', '.join(known)}"
                    yield Problem((*path, index, "engines", place), text)


def _self_check(config: AnbarConfig) -> Iterator[Problem]:
    check = config.router.self_check
    path: KeyPath = ("router", "self_check")
    for key in ("min_requests", "agree_requests"):
        if getattr(check, key) > check.window:
            yield Problem((*path, key), f"is {getattr(check, key)}; allowed: up to window ({check.window})")
    if check.agree_absent > check.max_absent:
        text = f"is {check.agree_absent}; allowed: up to max_absent ({check.max_absent})"
        yield Problem((*path, "agree_absent"), text)
