"""Scenarios on disk: those of the package, by name, and anybody's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from anbar.apps.simulate.scenario import Scenario
from anbar.apps.simulate.setup import Unfit
from anbar.config.problems import KeyPath, Problem, dotted, from_pydantic, suggestion
from anbar.config.source import Document, read_document
from anbar.core.errors import ConfigError

_SUFFIX = ".yaml"


@dataclass(frozen=True, slots=True)
class Found:
    """A scenario, and where what it names is looked for."""

    name: str
    scenario: Scenario
    directory: Path
    origin: str = ""
    """The file, for messages; "": `name`."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """Of its keys."""

    def located(self, error: Unfit) -> ConfigError:
        """The same with file and line."""
        return ConfigError(f"{self.origin or self.name}:{_line(self.lines, error.path)}: {error}")


def bundled() -> dict[str, str]:
    """Text of each scenario of the package, by its name."""
    folder = files("anbar.apps.simulate") / "scenarios"
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    return {name.removesuffix(_SUFFIX): texts[name] for name in sorted(texts) if name.endswith(_SUFFIX)}


def read_scenario(what: str) -> Found:
    """`what` is the name of a scenario of the package, or a path.

    Raises ConfigError with one line per problem, which names file, line and key, and what is allowed.
    """
    texts = bundled()
    if what in texts:
        return _found(what, texts[what], what, Path())
    path = Path(what)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    except OSError as error:
        allowed = f"allowed: a file, or one of {', '.join(texts)}{suggestion(what, texts)}"
        raise ConfigError(f"scenario {what!r}: cannot be read: {error.strerror}; {allowed}") from error
    return _found(path.stem, text, str(path), path.parent)


def _found(name: str, text: str, origin: str, directory: Path) -> Found:
    return Found(name, parse_scenario(text, origin), directory, origin, read_document(text).lines)


def parse_scenario(text: str, origin: str) -> Scenario:
    """The scenario of a YAML text, which came from `origin` (for messages). Raises ConfigError."""
    document = read_document(text)
    if not document.data and all(
        not line or line.startswith("#") for line in map(str.strip, text.splitlines())
    ):
        raise ConfigError(f"{origin}:1: holds no settings; a scenario needs at least `workload`")
    problems = list(document.problems)
    scenario: Scenario | None = None
    if document.data or not problems:
        try:
            scenario = Scenario.model_validate(document.data)
        except ValidationError as error:
            problems += from_pydantic(error.errors(include_url=False), Scenario)
    if scenario is not None:
        problems += _between(scenario)
    if problems or scenario is None:
        raise ConfigError(_report(origin, document, problems))
    return scenario


def _between(scenario: Scenario) -> Iterator[Problem]:
    """What single values cannot tell."""
    workload, store = scenario.workload, scenario.cache.store
    if (workload.trace is None) == (not workload.streams):
        yield Problem(("workload",), "needs `trace` or `streams`, and not both")
    for index, stream in enumerate(workload.streams):
        if (stream.rate is None) == (stream.clients is None):
            where = ("workload", "streams", index)
            yield Problem(where, "needs `rate` or `clients`, and not both")
    modes = scenario.cache.modes
    for index, mode in enumerate(modes):
        if mode in modes[:index]:
            yield Problem(("cache", "modes", index), f"is {mode}, as an earlier one is")
    names = [stream.name for stream in workload.streams]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(("workload", "streams", index, "name"), f"is {name!r}, as an earlier one's is")
    if store.copies > store.nodes:
        text = f"is {store.copies}; allowed: at most `nodes`, {store.nodes}"
        yield Problem(("cache", "store", "copies"), text)
    for index, event in enumerate(scenario.events):
        if event.node >= store.nodes:
            text = f"is {event.node}; allowed: 0 to {store.nodes - 1}, by `cache.store.nodes`"
            yield Problem(("events", index, "node"), text)
        if event.until_s is not None and event.until_s <= event.at_s:
            yield Problem(("events", index, "until_s"), f"is {event.until_s:g}; allowed: after `at_s`")
    if scenario.fleet.prefill_engines >= scenario.fleet.engines:
        text = f"is {scenario.fleet.prefill_engines}; allowed: fewer than `engines`, {scenario.fleet.engines}"
        yield Problem(("fleet", "prefill_engines"), text)
    if scenario.fleet.prefill_engines and tuple(scenario.cache.modes) != ("shared",):
        yield Problem(("cache", "modes"), "allowed with `fleet.prefill_engines`: [shared]")
    if scenario.sweep is not None and ("none" not in scenario.cache.modes or len(scenario.cache.modes) < 2):
        yield Problem(("sweep",), "compares: `cache.modes` needs none and another one")


def _report(origin: str, document: Document, problems: list[Problem]) -> str:
    lines = sorted((_located(document, problem), _told(problem)) for problem in problems)
    texts = [f"{origin}:{line}: {text}" for line, text in lines]
    return texts[0] if len(texts) == 1 else "\n  ".join([f"{origin}: {len(texts)} problems", *texts])


def _told(problem: Problem) -> str:
    key = dotted(problem.path)
    return f"{key}: {problem.message}" if key else problem.message


def _located(document: Document, problem: Problem) -> int:
    return problem.line if problem.line is not None else _line(document.lines, problem.path)


def _line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Of a key, or of what it would stand in."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
