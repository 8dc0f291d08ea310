"""What discovery finds: the file that lists engines, and how an entry and a find make an engine.

The file is a list, in YAML or JSON. An item is an address (`10.0.0.5:8000`, `http://10.0.0.5:8000`), keys
with `url` and what differs from the entry, or a group of `targets` with `labels`, as Prometheus' file_sd has
it: of the labels `__scheme__` and those that begin with `anbar_` are read, the others are somebody else's.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import StringConstraints, ValidationError

from anbar.config.discover import Scheme
from anbar.config.fields import ConfigModel, EnvName, HttpUrl, NamedPath, ZmqUrl, for_engine
from anbar.config.models import EngineConfig
from anbar.config.problems import KeyPath, Problem, dotted, from_pydantic, suggestion
from anbar.config.source import read_listing
from anbar.core.errors import ConfigError

_LABEL = "anbar_"
_SCHEME = "__scheme__"
_GROUP_KEYS = ("targets", "labels")
_HAS_PORT = re.compile(r"[^/\s]+:\d{1,5}(/\S*)?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class FoundEngine(ConfigModel):
    """One engine that was found, and what is to be said of it in place of what its entry says."""

    url: HttpUrl
    events: ZmqUrl | None = None
    replay: ZmqUrl | None = None
    tokenizer: Annotated[str, StringConstraints(min_length=1)] | None = None
    api_key_env: EnvName | None = None
    api_key_file: NamedPath | None = None
    cost_file: NamedPath | None = None


_OWN_KEYS = tuple(key for key in FoundEngine.model_fields if key != "url")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a good look has found."""

    engines: tuple[FoundEngine, ...]
    again_s: float
    """Seconds after which to look again."""
    untold: str = ""
    """What could not be told, and why: there may be more engines. "": these are all."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine listens; two addresses of one place are written in one way."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}{self.path}"


def bracketed(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def place_of(url: str) -> Place:
    """The place of an engine's address."""
    parts = urlsplit(url)
    port = parts.port if parts.port is not None else _DEFAULT_PORTS[parts.scheme]
    return Place((parts.hostname or "").rstrip("."), port, parts.path.rstrip("/"))


def engine_of(entry: EngineConfig, found: FoundEngine) -> EngineConfig:
    """The engine that `entry` and a find make: an entry with a `url`, under the id `<name>@<host>:<port>`."""
    place = place_of(found.url)
    said = {key: getattr(found, key) for key in _OWN_KEYS if getattr(found, key) is not None}
    update: dict[str, Any] = {"name": f"{entry.name}@{place}", "url": found.url, "discover": None, **said}
    if "api_key_env" in said or "api_key_file" in said:
        update = {"api_key_env": None, "api_key_file": None, **update}
    for key in ("events", "replay"):
        template = update.get(key, getattr(entry, key))
        if template is not None:
            update[key] = for_engine(template, bracketed(place.host), place.port)
    return entry.model_copy(update=update)


def read_engines(path: Path, scheme: Scheme) -> tuple[FoundEngine, ...]:
    """The engines that a file lists. Raises ConfigError that names file, line, key and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    return parse_engines(text, path, scheme)


def parse_engines(text: str, path: Path, scheme: Scheme) -> tuple[FoundEngine, ...]:
    """As `read_engines`, of text that was read from `path`."""
    listing = read_listing(text)
    problems = list(listing.problems)
    found: list[FoundEngine] = []
    places: dict[Place, KeyPath] = {}
    for where, item in _items(listing.items, scheme, problems):
        engine = _engine(where, item, path.parent, problems)
        if engine is None:
            continue
        first = places.setdefault(place_of(engine.url), where)
        if first is where:
            found.append(engine)
        else:
            problems.append(Problem(where, f"is the engine of {dotted(first)} again"))
    if problems:
        raise ConfigError(_report(path, problems, listing.lines))
    return tuple(found)


def _items(
    items: Sequence[object], scheme: Scheme, problems: list[Problem]
) -> Iterator[tuple[KeyPath, dict[str, object]]]:
    """Every engine's raw keys and where they stand."""
    for index, item in enumerate(items):
        if isinstance(item, str):
            yield (index,), {"url": _with_scheme(item, scheme.value)}
        elif not isinstance(item, dict):
            problems.append(Problem((index,), f"is {item!r}; allowed: an address, or keys and values"))
        elif "targets" in item:
            yield from _group(index, item, scheme, problems)
        else:
            url = item.get("url")
            yield (index,), {**item, "url": _with_scheme(url, scheme.value)} if isinstance(url, str) else item


def _group(
    index: int, group: Mapping[str, object], scheme: Scheme, problems: list[Problem]
) -> Iterator[tuple[KeyPath, dict[str, object]]]:
    for key in group:
        if key not in _GROUP_KEYS:
            hint = suggestion(key, _GROUP_KEYS)
            problems.append(
                Problem((index, key), f"unknown key{hint} (allowed here: {', '.join(_GROUP_KEYS)})")
            )
    targets, labels = group["targets"], group.get("labels") or {}
    if not isinstance(targets, list):
        problems.append(Problem((index, "targets"), "allowed: a list of addresses"))
        return
    if not isinstance(labels, dict):
        problems.append(Problem((index, "labels"), "allowed: keys and values"))
        return
    said = {key.removeprefix(_LABEL): value for key, value in labels.items() if key.startswith(_LABEL)}
    for key in [key for key in said if key not in _OWN_KEYS]:
        allowed = [f"{_LABEL}{own}" for own in _OWN_KEYS]
        text = f"unknown label{suggestion(_LABEL + key, allowed)} (ours are {', '.join(allowed)})"
        problems.append(Problem((index, "labels", f"{_LABEL}{key}"), text))
        del said[key]
    spoken = labels.get(_SCHEME, scheme.value)
    if spoken not in _DEFAULT_PORTS:
        problems.append(Problem((index, "labels", _SCHEME), f"is {spoken!r}; allowed: http, https"))
        return
    for place, target in enumerate(targets):
        if isinstance(target, str):
            yield (index, "targets", place), {**said, "url": _with_scheme(target, spoken)}
        else:
            problems.append(Problem((index, "targets", place), f"is {target!r}; allowed: host:port, as text"))


def _with_scheme(text: str, scheme: str) -> str:
    return f"{scheme}://{text}" if _HAS_PORT.fullmatch(text) else text


def _engine(
    where: KeyPath, item: Mapping[str, object], base: Path, problems: list[Problem]
) -> FoundEngine | None:
    try:
        engine = FoundEngine.model_validate(item)
    except ValidationError as error:
        wrong = [_reworded(p) for p in from_pydantic(error.errors(include_url=False), FoundEngine)]
        problems.extend(_placed(where, problem) for problem in wrong)
        return None
    if engine.api_key_env is not None and engine.api_key_file is not None:
        problems.append(Problem((*where, "api_key_file"), "cannot stand beside `api_key_env`: keep one"))
    update: dict[str, Any] = {
        key: Path(os.path.abspath(base / path.expanduser()))
        for key in ("api_key_file", "cost_file")
        if (path := getattr(engine, key)) is not None
    }
    if engine.tokenizer is not None and engine.tokenizer.startswith(("./", "../", "~")):
        update["tokenizer"] = os.path.abspath(base / Path(engine.tokenizer).expanduser())
    return engine.model_copy(update=update)


def _reworded(problem: Problem) -> Problem:
    """In a list an address may come without a scheme."""
    message = problem.message.replace("allowed: http:// or", "allowed: host:port, or http:// or")
    return Problem(problem.path, message, problem.line)


def _placed(where: KeyPath, problem: Problem) -> Problem:
    """A problem of an item at its place in the file: an address stands there alone, other keys of a group in
    its labels."""
    if where[1:2] == ("targets",) and problem.path != ("url",):
        return Problem((where[0], "labels", f"{_LABEL}{problem.path[0]}"), problem.message)
    return Problem((*where, *problem.path), problem.message)


def _report(path: Path, problems: Sequence[Problem], lines: Mapping[KeyPath, int]) -> str:
    located = sorted(((_line(problem, lines), problem) for problem in problems), key=lambda pair: pair[0])
    texts = []
    for line, problem in located:
        key = dotted(problem.path)
        texts.append(
            f"{path}:{line}: {key}: {problem.message}" if key else f"{path}:{line}: {problem.message}"
        )
    if len(texts) == 1:
        return texts[0]
    return "\n  ".join([f"{path}: {len(texts)} problems", *texts])


def _line(problem: Problem, lines: Mapping[KeyPath, int]) -> int:
    if problem.line is not None:
        return problem.line
    depths = range(len(problem.path), -1, -1)
    return next((lines[problem.path[:depth]] for depth in depths if problem.path[:depth] in lines), 1)
