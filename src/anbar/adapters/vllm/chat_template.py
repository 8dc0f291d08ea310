"""Which shape of message content a chat template expects: plain text, or OpenAI's list of parts.

vLLM decides it from the template itself (0.32 `renderers/hf.py`, `_detect_content_format`): a template
that loops over a message's content gets parts, any other gets one string. The same question is answered
here, since another answer would mean another prompt.
"""

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser


class ContentFormat(Enum):
    """How message content is handed to the template."""

    STRING = "string"
    PARTS = "openai"


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, which chat templates may use to mark what the assistant said."""

    tags = {"generation"}  # noqa: RUF012 jinja2's way to declare it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Undecidable(Exception):
    """The template binds messages in a way that vLLM gives up on."""


@lru_cache(maxsize=64)
def content_format(template: str) -> ContentFormat:
    """The content format of a template; STRING when it cannot be told, as in vLLM."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    try:
        root = environment.parse(template)
        return ContentFormat.PARTS if _loops_over_content(root) else ContentFormat.STRING
    except (jinja2.TemplateError, _Undecidable):
        return ContentFormat.STRING


def _loops_over_content(root: nodes.Template) -> bool:
    messages = set(_message_names(root))
    macro_loops, given = _macro_loops(root, messages)
    for loop in root.find_all(nodes.For):
        if any(_takes(loop.iter, name, "content") for name in messages):
            return _bound(loop.target) != ""
        if not isinstance(loop.iter, nodes.Name):
            continue
        if loop.iter.name in given.get(id(loop), frozenset()):
            return _bound(loop.target) != ""
        if id(loop) not in macro_loops and loop.iter.name == "content":
            return _bound(loop.target) != ""
    return False


def _message_names(root: nodes.Template) -> Iterator[str]:
    """Names that stand for one message: the targets of loops over the list of messages."""
    lists = _list_names(root)
    for loop in root.find_all(nodes.For):
        if any(_takes(loop.iter, name) for name in lists):
            yield _bound(loop.target)


def _list_names(root: nodes.Template) -> list[str]:
    """`messages`, and what is assigned from it, directly or by way of others."""
    names = ["messages"]
    for name in names:
        for assign in root.find_all(nodes.Assign):
            if _takes(assign.node, name):
                target = _bound(assign.target)
                if target not in names:
                    names.append(target)
    return names


def _macro_loops(root: nodes.Template, messages: set[str]) -> tuple[set[int], dict[int, frozenset[str]]]:
    """The loops inside macros, and for each the macro's parameters that are given a message's content."""
    loops: set[int] = set()
    given: dict[int, frozenset[str]] = {}
    for macro in root.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        content = frozenset(
            parameter
            for call in root.find_all(nodes.Call)
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name
            for parameter, value in _arguments(call, names)
            if any(_takes(value, message, "content") for message in messages)
        )
        for loop in macro.find_all(nodes.For):
            loops.add(id(loop))
            if content:
                given[id(loop)] = content
    return loops, given


def _arguments(call: nodes.Call, names: list[str]) -> Iterator[tuple[str, nodes.Expr]]:
    yield from zip(names, call.args, strict=False)
    for keyword in call.kwargs:
        if isinstance(keyword, nodes.Keyword) and keyword.key in names:
            yield keyword.key, keyword.value


def _takes(node: nodes.Node | None, name: str, key: str = "") -> bool:
    """Whether an expression is the variable `name` (or its item `key`), filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if not key:
        return _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        return _is_name(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _is_name(node.node, name) and node.attr == key


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _bound(target: nodes.Node) -> str:
    """The name that a loop or an assignment binds."""
    if not isinstance(target, nodes.Name):
        raise _Undecidable
    return target.name
