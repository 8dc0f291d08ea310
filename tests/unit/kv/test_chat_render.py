"""Chats are rendered as `transformers` renders them, whatever the template does."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from anbar.adapters.vllm.chat_render import may_render, render

from .chat_cases import CHATML, MACRO, NAMESPACE, PARTS_LOOP

THEIRS = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
)
TEMPLATES = {
    "chatml": CHATML,
    "macro": MACRO,
    "namespace": NAMESPACE,
    "parts": PARTS_LOOP,
    "tokens": "{{ bos_token }}{% for m in messages %}{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{{ x }}",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m.role | tojson(indent=2) }}{% endfor %}"
    "{{ tools | tojson }}",
    "lines": "  {% if tools %}\n    {{- tools[0].function.name }}\n  {% endif %}\n"
    "{# note #}\n{{ documents }}\n",
    "generation": "{% set a = 1 %}{% for m in messages %}{% generation %}{% set a = 2 %}{{ m.content }}"
    "{{ a }}{% endgeneration %}{{ a }}{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ loop.length }}"
    "{{ m['role'] }}{{ loop.previtem }}{% endfor %}",
    "refusing": "{{ raise_exception('no') if messages[0].role != 'user' }}{{ messages[0].content }}",
    "mutating": "{{ messages.append(1) }}",
    "unsafe": "{{ messages.__class__ }}|{{ messages[0].__class__.mro() }}",
    "unsafe by item": "{{ messages[x] }}|{{ messages[0][x] }}|{{ ''[x] }}",
    "formatting": "{{ '{0.__class__}'.format(messages) }}|{{ x.format(messages) }}|{{ 'a'.join }}",
    "attributes": "{{ messages[0].items() | list }}{{ messages[0].get('role').upper() }}"
    "{{ messages[0].nothing }}",
    "generation in a loop": "{% for m in messages %}{% generation %}{{ loop.index }}{% break %}"
    "{% endgeneration %}{% endfor %}",
    "namesakes": "{% set n = namespace(append=7) %}{{ n.append }}{{ messages.append }}{{ n.append }}",
    "dates": "{{ strftime_now('%Y') }}{{ add_generation_prompt }}{{ enable_thinking is defined }}",
    "failing": "{{ 1 // 0 }}",
    "broken": "{% for %}",
    "undefined": "{{ nothing.at.all }}",
    "self": "{% block a %}{{ x }}{% endblock %}{{ self.a() }}",
}

WORDS = st.sampled_from(
    ["", "hi", " a\n", "سلام", "👩\u200d👧", "{{ x }}", "__class__", "append", "<b>&", "{0}"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool"]), "content": WORDS},
        optional={"name": WORDS, "tool_calls": st.just([{"function": {"name": "f", "arguments": {"b": 1}}}])},
    ),
    min_size=1,
    max_size=4,
)
TOOLS = st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": WORDS})}), max_size=2)
KWARGS = st.fixed_dictionaries(
    {"add_generation_prompt": st.booleans(), "continue_final_message": st.just(False)},
    optional={"tools": TOOLS, "x": WORDS, "enable_thinking": st.booleans(), "bos_token": WORDS},
)


def outcome(call: Any) -> tuple[str, str]:
    try:
        return "text", call()
    except Exception as error:  # noqa: BLE001 - templates raise what they like
        return "error", type(error).__name__


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25)
@given(messages=MESSAGES, kwargs=KWARGS)
def test_the_text_is_theirs(name: str, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> None:
    """The same text or the same kind of error: white space around tags, scopes, loop controls, JSON in any
    script, special tokens and their override, safe and unsafe attributes, formatting, blocks."""
    template = TEMPLATES[name]
    fixed: dict[str, Any] = {"chat_template": template, "tokenize": False, "return_dict": False}
    assert may_render(kwargs)
    found = outcome(lambda: render(template, messages, kwargs, THEIRS.special_tokens_map))
    assert found == outcome(lambda: THEIRS.apply_chat_template(messages, **{**kwargs, **fixed}))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"continue_final_message": True},
        {"documents": [{}]},
        {"padding": False},
        {"self": 1},
        {"tools": "abc"},
        {"tools": [{}, 1]},
    ],
)
def test_what_is_left_to_them(kwargs: dict[str, Any]) -> None:
    """Arguments that they look at themselves."""
    assert not may_render({"add_generation_prompt": True, **kwargs})


def test_a_remembered_attribute_is_of_its_type() -> None:
    """What is safe of one type is not thereby safe of another, and names that come with requests do not
    fill the memory."""
    template = "{% for m in messages %}{% for n in names %}{{ m.content[n] }}{% endfor %}{% endfor %}"
    for names in (["append"], ["copy"], [f"a{at}" for at in range(3000)], ["append"], ["copy"]):
        kwargs = {"names": names}
        for content in ([1], {"copy": "key"}, "text"):
            messages = [{"role": "user", "content": content}]
            fixed: dict[str, Any] = {"chat_template": template, "tokenize": False, "return_dict": False}
            found = outcome(lambda m=messages, k=kwargs: _shown(render(template, m, k, {})))
            assert found == outcome(
                lambda m=messages, k=kwargs, f=fixed: _shown(THEIRS.apply_chat_template(m, **{**k, **f}))
            )


def _shown(text: str) -> str:
    """Without the addresses of objects."""
    return text.partition(" at 0x")[0].partition(" object")[0]
