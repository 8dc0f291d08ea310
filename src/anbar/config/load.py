"""From anbar.yaml, the environment and the command line to one checked configuration.

Later sources win: defaults, file, environment (`ANBAR_…`), command line. All problems are reported at once.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from anbar.config.checks import check
from anbar.config.models import AnbarConfig
from anbar.config.problems import KeyPath, Problem, dotted, fields_at, from_pydantic, suggestion
from anbar.config.source import Document, read_document
from anbar.config.stores import with_paths
from anbar.core.errors import ConfigError

ENVIRONMENT: Mapping[str, str] = {
    "ANBAR_STATE_DIR": "state_dir",
    "ANBAR_CACHE_MODE": "cache.mode",
    "ANBAR_ROUTER_HOST": "router.host",
    "ANBAR_ROUTER_PORT": "router.port",
}
"""The variables that set a value, and its key."""

DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class Override:
    """A value from outside the file: `key` as in `router.port` or `engines[0].launch.count`, `text` in YAML,
    `origin` in words (`command line --port`)."""

    key: str
    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration, and where each of its values came from.

    `origins` maps the dotted path of every leaf to `default`, `FILE:LINE`, `environment NAME` or
    `command line OPTION`. `path` is None without a file.
    """

    config: AnbarConfig
    origins: Mapping[str, str]
    path: Path | None


def load(
    path: Path | None, *, environ: Mapping[str, str] | None = None, overrides: Sequence[Override] = ()
) -> Loaded:
    """Read and check; `path` None means defaults. `environ` is where `ANBAR_…` is looked up (None: nowhere).

    Raises ConfigError with one line per problem.
    """
    document = _read(path) if path is not None else Document({}, {}, ())
    found = [
        Override(key, environ[name], f"environment {name}")
        for name, key in ENVIRONMENT.items()
        if environ is not None and name in environ
    ]
    source = _Source(path, document)
    for override in [*found, *overrides]:
        source.apply(override)
    base = (path.parent if path is not None else Path()).resolve()
    config = _absolute(source.validate(), base)
    origins = {dotted(leaf): source.origin(leaf) for leaf in _leaves(config.model_dump(mode="json"), ())}
    return Loaded(config, origins, path)


def replaced(loaded: Loaded, config: AnbarConfig, origin: str) -> Loaded:
    """`loaded` with `config` made from its own: values that differ come from `origin`."""
    before, after = leaf_values(loaded.config), leaf_values(config)
    origins = {
        path: loaded.origins[path] if path in loaded.origins and before[path] == value else origin
        for path, value in after.items()
    }
    return Loaded(config, origins, loaded.path)


def leaf_values(config: AnbarConfig) -> Mapping[str, object]:
    """Every leaf's value by its dotted path."""
    data = config.model_dump(mode="json")
    return {dotted(leaf): _at(data, leaf) for leaf in _leaves(data, ())}


def _at(data: Any, path: KeyPath) -> object:
    for key in path:
        data = data[key]
    return data


def _read(path: Path) -> Document:
    try:
        return read_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error


class _Source:
    """Raw data with the origin of each part, while it is put together."""

    def __init__(self, path: Path | None, document: Document) -> None:
        self._path = path
        self._data = document.data
        self._lines = document.lines
        self._problems = list(document.problems)
        self._overridden: dict[KeyPath, str] = {}

    def apply(self, override: Override) -> None:
        keys = _parse_key(override.key)
        try:
            value = yaml.safe_load(override.text)
        except yaml.YAMLError:
            value = override.text
        if keys[0] == "engines" and "engines" not in self._data:
            self._data["engines"] = [
                engine.model_dump(mode="json", exclude_unset=True) for engine in AnbarConfig().engines
            ]
        place: Any = self._data
        for index, key in enumerate(keys):
            if isinstance(place, dict) and isinstance(key, str):
                if index == len(keys) - 1:
                    place[key] = value
                elif place.get(key) is None:
                    place[key] = {}
                place = place[key]
            elif isinstance(place, list) and isinstance(key, int) and key < len(place):
                if index == len(keys) - 1:
                    place[key] = value
                place = place[key]
            else:
                known = fields_at(keys[:index], AnbarConfig)
                hint = suggestion(str(key), known)
                self._problems.append(Problem(keys, f"no such place ({override.origin}){hint}"))
                return
        self._overridden[keys] = override.origin

    def validate(self) -> AnbarConfig:
        """The configuration; raises with all problems: of single values, and between the right ones."""
        config, wrong = _try(self._data)
        nul = [Problem(leaf, "has a NUL character in it") for leaf in _with_nul(self._data)]
        if nul:  # a path, an argument or a variable that no system call takes
            config, wrong = None, [*wrong, *nul]
        self._problems += wrong
        if config is None:
            config, _ = _try(_without(self._data, [problem.path for problem in wrong]))
        if config is not None:
            # A problem of what holds a wrong value would only be an echo: the value is missing here.
            bad = {problem.path[:depth] for problem in wrong for depth in range(1, len(problem.path) + 1)}
            self._problems += [p for p in check(config) if p.path not in bad]
        if self._problems:
            raise ConfigError(self._report())
        assert config is not None
        return config

    def origin(self, path: KeyPath) -> str:
        """Where the value at `path` came from."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self._overridden:
                return self._overridden[path[:depth]]
        return f"{self._path}:{self._lines[path]}" if path in self._lines else DEFAULT_ORIGIN

    def _report(self) -> str:
        located = sorted(map(self._locate, self._problems), key=lambda found: found[0])
        lines = [text for _, text in located]
        if len(lines) == 1:
            return lines[0]
        where = self._path if self._path is not None else "configuration"
        return "\n  ".join([f"{where}: {len(lines)} problems", *lines])

    def _locate(self, problem: Problem) -> tuple[int, str]:
        """The line of a problem (0: not in the file) and its text with its place in front."""
        key = dotted(problem.path)
        text = f"{key}: {problem.message}" if key else problem.message
        for depth in range(len(problem.path), -1, -1):
            path = problem.path[:depth]
            for keys, origin in self._overridden.items():
                if keys == path or (path == problem.path and keys[:depth] == path and depth):
                    return 0, f"{origin}: {text}"
            line = problem.line if problem.line is not None else self._lines.get(path)
            if line is not None and self._path is not None:
                return line, f"{self._path}:{line}: {text}"
        return 0, f"{self._path}: {text}" if self._path is not None else text


def _parse_key(key: str) -> KeyPath:
    parts = [part for part in re.split(r"[.\[\]]+", key) if part]
    if not parts:
        raise ConfigError(f"{key!r} is not a key; write it as router.port or engines[0].launch.count")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _try(data: Mapping[str, Any]) -> tuple[AnbarConfig | None, list[Problem]]:
    try:
        return AnbarConfig.model_validate(data), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, list(from_pydantic(details, AnbarConfig))


def _without(data: object, paths: Iterable[KeyPath]) -> Any:
    """A copy of `data` lacking the values at `paths`, so that the rest can still be checked."""
    heads = [path for path in paths if path]
    if isinstance(data, dict):
        return {
            key: _without(value, [path[1:] for path in heads if path[0] == key])
            for key, value in data.items()
            if (key,) not in heads
        }
    if isinstance(data, list):
        return [
            _without(value, [path[1:] for path in heads if path[0] == index])
            for index, value in enumerate(data)
            if (index,) not in heads
        ]
    return data


def _with_nul(data: Any) -> list[KeyPath]:
    leaves = _leaves(data, ())
    return [leaf for leaf in leaves if isinstance(text := _at(data, leaf), str) and "\0" in text]


def _leaves(data: object, path: KeyPath) -> Iterable[KeyPath]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from _leaves(value, (*path, index))
    else:
        yield path


def _absolute(config: AnbarConfig, base: Path) -> AnbarConfig:
    """`config` with absolute paths; what is a name and not a path stays as it is."""

    def place(path: Path) -> Path:
        return (base / path.expanduser()).resolve()

    def link(path: Path) -> Path:
        """Of a file that is read again: links stay, since they may be turned, as Kubernetes does."""
        return Path(os.path.abspath(base / path.expanduser()))

    engines = []
    for engine in config.engines:
        update: dict[str, Any] = {}
        if engine.api_key_file is not None:
            update["api_key_file"] = link(engine.api_key_file)
        if engine.cost_file is not None:
            update["cost_file"] = place(engine.cost_file)
        if engine.discover is not None and engine.discover.file is not None:
            file = link(engine.discover.file)
            update["discover"] = engine.discover.model_copy(update={"file": file})
        if engine.tokenizer is not None and _looks_like_path(engine.tokenizer):
            update["tokenizer"] = str(place(Path(engine.tokenizer)))
        if engine.launch is not None and _looks_like_path(engine.launch.model):
            model = str(place(Path(engine.launch.model)))
            update["launch"] = engine.launch.model_copy(update={"model": model})
        engines.append(engine.model_copy(update=update))
    router = config.router
    if router.record.path is not None:
        record = router.record.model_copy(update={"path": place(router.record.path)})
        router = router.model_copy(update={"record": record})
    if router.exchange.secret_file is not None:
        exchange = router.exchange.model_copy(update={"secret_file": link(router.exchange.secret_file)})
        router = router.model_copy(update={"exchange": exchange})
    store = with_paths(config.cache.store, place, link)
    return config.model_copy(
        update={
            "state_dir": place(config.state_dir),
            "engines": tuple(engines),
            "cache": config.cache.model_copy(update={"store": store}),
            "router": router,
        }
    )


def _looks_like_path(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~"))
