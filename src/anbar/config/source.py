"""YAML text to plain data, with the line of every key. Duplicate keys are refused: YAML's last-one-wins hides
a setting that somebody believes to be in force."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from anbar.config.problems import KeyPath, Problem


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed text: `lines` maps the path of each value to its 1-based line (the root is at `()`)."""

    data: dict[str, Any]
    lines: Mapping[KeyPath, int]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """As a `Document`, of text that holds a list."""

    items: list[Any]
    lines: Mapping[KeyPath, int]
    problems: tuple[Problem, ...]


def read_document(text: str) -> Document:
    """Parse `text`. What is wrong with it is in `problems`; then `data` holds what could be read."""
    data, lines, problems = _parse(text)
    if data is None and not problems:
        problems = (Problem((), "holds no settings; {} is a file with the defaults", line=1),)
    if problems and not lines:
        return Document({}, {}, problems)
    if not isinstance(data, dict):
        found = type(data).__name__
        return Document({}, {}, (Problem((), f"holds a {found}, must hold keys and values", line=1),))
    return Document(data, lines, problems)


def read_listing(text: str) -> Listing:
    """Parse `text` that holds a list. What is wrong with it is in `problems`."""
    data, lines, problems = _parse(text)
    if not problems and not isinstance(data, list):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        problems = (Problem((), f"holds {found}, must hold a list; [] is one without engines", line=1),)
    return Listing(data if isinstance(data, list) else [], lines, problems)


def _parse(text: str) -> tuple[object, Mapping[KeyPath, int], tuple[Problem, ...]]:
    """The data (None: nothing is there), its lines, and what is wrong; no lines: it cannot be read."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            reader = _Reader(loader)
            data = None if node is None else reader.value(node, ())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        return None, {}, (_syntax_problem(error),)
    return data, reader.lines, tuple(reader.problems)


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    return Problem((), f"not valid YAML: {what}", line=mark.line + 1 if mark is not None else 1)


class _Reader:
    """Walks composed nodes; the loader's own constructor is used for scalars only."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._within: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if any(node is outer for outer in self._within):
            line = node.start_mark.line + 1
            self.problems.append(Problem(path, "holds itself (an alias of what it stands in)", line=line))
            return None
        self._within.append(node)
        try:
            return self._content(node, path)
        finally:
            self._within.pop()

    def _content(self, node: yaml.Node, path: KeyPath) -> object:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
        result: object = self._loader.construct_object(node, deep=True)
        return result

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key_node, yaml.ScalarNode) and key in seen:
                again = f"given twice, first in line {seen[key]}; keep one"
                self.problems.append(Problem((*path, str(key)), again, line=line))
            elif isinstance(key_node, yaml.ScalarNode):
                seen[key] = line
        self._loader.flatten_mapping(node)
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(path, "a key must be text", line=line))
                continue
            key = str(key_node.value)
            self.lines[(*path, key)] = line
            found[key] = self.value(value_node, (*path, key))
        return found
