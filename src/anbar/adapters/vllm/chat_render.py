"""Runs chat templates as `transformers` does, in half the time.

Source: transformers 5 `utils/chat_template_utils.py` (`_cached_compile_jinja_template`) and
`tokenization_utils_base.py` (`apply_chat_template`): the environment, its filters and its globals are theirs.
What they do beside rendering (continuing a message, checking documents) is left to them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import LoopContext

_OF_LOOPS = frozenset(("first", "last", "index", "index0", "length"))
_KNOWN_ATTRIBUTES = 1024
"""Pairs of a type and a name whose safety is remembered. Names may come from requests."""

_THEIRS = frozenset(
    {
        *("self", "conversation", "conversations", "messages", "documents", "chat_template", "tokenize"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        "return_assistant_tokens_mask",
    }
)
"""Names of arguments of theirs that do not reach the template as they are."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` around what the assistant said: its body, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 jinja2's way to declare it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body_of"), [], [], body).set_lineno(line)

    def body_of(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, which asks of an object's type and an attribute's name whether it is safe, once."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _strftime_now
        self._safe: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What a loop tells of itself is safe, and templates ask for it with every message."""
        if type(obj) is LoopContext and attribute in _OF_LOOPS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = type(obj), attr
        found = self._safe.get(key)
        if found is None:
            found = super().is_safe_attribute(obj, attr, value)
            if len(self._safe) < _KNOWN_ATTRIBUTES:
                self._safe[key] = found
        return found


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in the engine


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    made = _Environment().from_string(template)
    made.globals = dict(made.globals)  # a chain of mappings, which each rendering would copy key by key
    return made


def may_render(kwargs: Mapping[str, object]) -> bool:
    """Whether nothing but the template decides what becomes of these arguments."""
    if kwargs.get("continue_final_message") or not _THEIRS.isdisjoint(kwargs):
        return False
    tools = kwargs.get("tools")
    return tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))


def render(
    template: str,
    messages: Sequence[Mapping[str, object]],
    kwargs: Mapping[str, object],
    special: Mapping[str, object],
) -> str:
    """The text of a chat, where `may_render`. `special`: the tokenizer's special tokens by name. Raises
    whatever the template does."""
    values = {"tools": None, "documents": None, "add_generation_prompt": False, **special, **kwargs}
    values.pop("continue_final_message", None)
    values["messages"] = messages
    compiled = _compiled(template)
    # As `compiled.render(values)`, which copies them twice more, and rewrites tracebacks.
    return "".join(
        compiled.root_render_func(compiled.new_context({**compiled.globals, **values}, shared=True))
    )
