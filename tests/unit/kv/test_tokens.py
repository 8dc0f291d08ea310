"""Token ids of requests: the same as vLLM's, or a reason why not. Needs neither vLLM nor torch.

The tokenizer is trained here, on a few sentences. What vLLM's renderer makes of each chat is in
chat_golden.json; vLLM then encodes that text as `/v1/completions` does a prompt, which is what the
expectations do.
"""

import copy
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.chat_template import ContentFormat, content_format
from anbar.adapters.vllm.remote_tokens import chat_request, completion_request, token_ids
from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer, TokenizerOptions, load_tokenizer
from anbar.core.errors import ConfigError, UpstreamError

from .chat_cases import CHATML, MACRO, NAMESPACE, PARTS_LOOP, bodies, user

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "سلام دنیا، حال شما چطور است؟ انبار جایی برای نگه داشتن چیزهاست.",
    "नमस्ते दुनिया, आप कैसे हैं? अंबार चीज़ें रखने की जगह है।",
]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
GOLDEN = json.loads(Path(__file__).with_name("chat_golden.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a byte-level BPE tokenizer that puts <s> first, and a ChatML template."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet)
    raw.train_from_iterator(SENTENCES, trainer)
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    path = tmp_path_factory.mktemp("model")
    PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", chat_template=CHATML).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder, TokenizerOptions(max_model_len=64, trust_request_template=True))


@pytest.fixture(scope="module")
def raw(folder: Path) -> RawTokenizer:
    return RawTokenizer.from_file(str(folder / "tokenizer.json"))


def encode(raw: RawTokenizer, words: str, special: bool = False) -> list[int]:
    return list(raw.encode(words, add_special_tokens=special).ids)


def reason(found: list[int] | NotReproducible) -> Reason | None:
    return found.reason if isinstance(found, NotReproducible) else None


@pytest.mark.parametrize("at", range(len(GOLDEN)))
def test_chats_render_as_in_vllm(tokenizer: Tokenizer, raw: RawTokenizer, at: int) -> None:
    """Salutations in Persian and Hindi, parts, tools, tool calls, developer messages, prefilled answers,
    template arguments, with templates of both content formats: the ids of vLLM's text; and the request is
    left as it was."""
    body = list(bodies())[at]
    before = copy.deepcopy(body)
    found = tokenizer.chat(body)
    assert body == before
    if GOLDEN[at] is None:
        assert reason(found) is Reason.TEMPLATE_FAILED
    else:
        assert found == encode(raw, GOLDEN[at])


def test_golden_and_cases_belong_together() -> None:
    """Every case has its golden text, and nearly all were rendered."""
    assert len(GOLDEN) == len(list(bodies()))
    assert GOLDEN.count(None) < len(GOLDEN) / 10


def test_the_tokenizers_own_template_and_special_tokens(tokenizer: Tokenizer, raw: RawTokenizer) -> None:
    """Without a template in the request the tokenizer's is used; a chat gets no <s> unless asked for."""
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    body: dict[str, Any] = {"messages": [user("hi")]}
    assert tokenizer.chat(body) == encode(raw, text)
    assert tokenizer.chat({**body, "add_special_tokens": True}) == [2, *encode(raw, text)]


def test_completions(tokenizer: Tokenizer, raw: RawTokenizer) -> None:
    """Text gets <s> unless refused, ids stay as they are, a list of one prompt is that prompt."""
    for words in SENTENCES:
        assert tokenizer.completion({"prompt": words}) == encode(raw, words, special=True)
    assert tokenizer.completion({"prompt": ["hi"]}) == [2, *encode(raw, "hi")]
    assert tokenizer.completion({"prompt": "hi", "add_special_tokens": False}) == encode(raw, "hi")
    assert tokenizer.completion({"prompt": [5, 6]}) == tokenizer.completion({"prompt": [[5, 6]]}) == [5, 6]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": [*range(10)], "truncate_prompt_tokens": 4}, [6, 7, 8, 9]),
        ({"prompt": [*range(10)], "truncate_prompt_tokens": 4, "truncation_side": "right"}, [0, 1, 2, 3]),
        ({"prompt": [*range(10)], "truncate_prompt_tokens": 40}, [*range(10)]),
        ({"prompt": [*range(10)], "truncate_prompt_tokens": 0}, []),
        ({"prompt": [*range(100)], "truncate_prompt_tokens": -1}, [*range(37, 100)]),
        ({"prompt": [*range(100)], "truncate_prompt_tokens": -1, "max_tokens": 0}, [*range(36, 100)]),
        ({"prompt": [*range(100)]}, [*range(100)]),
    ],
)
def test_truncation_of_ids(tokenizer: Tokenizer, body: dict[str, Any], expected: list[int]) -> None:
    """The last ids are kept, or the first when asked; -1 leaves the context less a token for the output.
    Without it a prompt is never cut, however long."""
    assert tokenizer.completion(body) == expected


def test_truncation_of_text(tokenizer: Tokenizer, raw: RawTokenizer) -> None:
    """Text is cut by the tokenizer, which keeps <s> in front; the next request is not cut by it."""
    words = SENTENCES[0]
    whole = encode(raw, words)
    assert tokenizer.completion({"prompt": words, "truncate_prompt_tokens": 5}) == [2, *whole[-4:]]
    left = {"prompt": words, "truncate_prompt_tokens": 5, "truncation_side": "left"}
    assert tokenizer.completion(left) == whole[-5:]
    assert tokenizer.completion({"prompt": words}) == [2, *whole]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}])], Reason.MEDIA),
        ([user([{"type": "input_audio", "input_audio": {}}])], Reason.MEDIA),
        ([user([{"type": "text", "text": "a", "uuid": "u"}])], Reason.MEDIA),
        ([user([{"text": "a"}])], Reason.MALFORMED),
        ([user([7])], Reason.MALFORMED),
        ([user(7)], Reason.MALFORMED),
        ([{"content": "x"}], Reason.MALFORMED),
        (["hi"], Reason.MALFORMED),
        ([], Reason.MALFORMED),
        ("hi", Reason.MALFORMED),
        (None, Reason.MALFORMED),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], Reason.MALFORMED),
        ([{"role": "assistant", "tool_calls": 1}], Reason.MALFORMED),
    ],
)
def test_chats_that_cannot_be_reproduced(tokenizer: Tokenizer, messages: object, expected: Reason) -> None:
    """Media and malformed messages give a reason, not ids and not an exception."""
    assert reason(tokenizer.chat({"messages": messages})) is expected
    assert isinstance(chat_request({"messages": messages}), NotReproducible)


@pytest.mark.parametrize(
    "change",
    [
        {"add_generation_prompt": "yes"},
        {"chat_template": 3},
        {"chat_template_kwargs": []},
        {"chat_template_kwargs": {"tokenize": True}},
        {"tools": {}},
        {"tools": [{"type": "function"}]},
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": True},
    ],
)
def test_malformed_fields(tokenizer: Tokenizer, change: dict[str, Any]) -> None:
    """Fields that the engine will refuse make no ids."""
    assert reason(tokenizer.chat({"messages": [user("hi")], **change})) is Reason.MALFORMED


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": ["a", "b"]}, Reason.SEVERAL_PROMPTS),
        ({"prompt": [[1], [2]]}, Reason.SEVERAL_PROMPTS),
        ({"prompt_embeds": "abc"}, Reason.MEDIA),
        ({}, Reason.MALFORMED),
        ({"prompt": []}, Reason.MALFORMED),
        ({"prompt": [1, "a"]}, Reason.MALFORMED),
        ({"prompt": [-1]}, Reason.MALFORMED),
        ({"prompt": [True]}, Reason.MALFORMED),
        ({"prompt": {"a": 1}}, Reason.MALFORMED),
    ],
)
def test_completions_that_cannot_be_reproduced(
    tokenizer: Tokenizer, body: dict[str, Any], expected: Reason
) -> None:
    """Several prompts, embeddings and malformed prompts give a reason."""
    assert reason(tokenizer.completion(body)) is expected


def test_templates_that_fail_or_are_missing(folder: Path, raw: RawTokenizer) -> None:
    """A template that raises, or none at all, is a reason; its text repeats nothing of the request."""
    tokenizer = load_tokenizer(folder, TokenizerOptions(trust_request_template=True))
    refusing = "{{ raise_exception('no ' + messages[0].content) }}"
    found = tokenizer.chat({"messages": [user("secret")], "chat_template": refusing})
    assert isinstance(found, NotReproducible)
    assert (found.reason, found.detail) == (Reason.TEMPLATE_FAILED, "TemplateError")
    bare = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=raw), TokenizerOptions())
    assert reason(bare.chat({"messages": [user("hi")]})) is Reason.NO_TEMPLATE
    assert reason(bare.completion({"prompt": "a", "truncate_prompt_tokens": -1})) is Reason.TRUNCATION


def test_a_requests_own_template_is_not_run_unless_trusted(folder: Path) -> None:
    """The engine refuses it by default, so it must not cost the router anything."""
    body = {"messages": [user("hi")], "chat_template": "{% for a in range(99999) %}x{% endfor %}"}
    assert reason(load_tokenizer(folder).chat(body)) is Reason.UNTRUSTED_TEMPLATE


def test_server_options(folder: Path, raw: RawTokenizer) -> None:
    """What the engine was started with changes its prompts: template, its arguments, content format,
    tools."""
    show = "{{ messages[0].content }}|{{ a }}|{{ b }}|{{ tools | length if tools else 0 }}"
    options = TokenizerOptions(
        chat_template=show,
        chat_template_kwargs={"a": 1, "b": 2},
        content_format=ContentFormat.PARTS,
        exclude_tools_when_none=True,
    )
    tokenizer = load_tokenizer(folder, options)
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": [user("hi")], "chat_template_kwargs": {"b": 3}, "tools": tools}
    assert tokenizer.chat(body) == encode(raw, "[{'type': 'text', 'text': 'hi'}]|1|3|1")
    none = {**body, "tool_choice": "none"}
    assert tokenizer.chat(none) == encode(raw, "[{'type': 'text', 'text': 'hi'}]|1|3|0")


def test_families_with_renderers_of_their_own(folder: Path, tmp_path: Path) -> None:
    """Chats that vLLM renders by code are not guessed at with a template; plain prompts may be."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    harmony = load_tokenizer(tmp_path)
    assert reason(harmony.chat({"messages": [user("hi")]})) is Reason.OWN_RENDERER
    assert reason(harmony.completion({"prompt": "hi"})) is None
    (tmp_path / "tekken.json").write_text("{}")
    mistral = load_tokenizer(tmp_path)
    assert reason(mistral.completion({"prompt": "hi"})) is Reason.OWN_RENDERER


def test_a_processors_template_comes_first_but_for_tools(
    folder: Path, tmp_path: Path, raw: RawTokenizer
) -> None:
    """A multimodal model's processor has a template of its own, used unless tools are given."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "chat_template.json").write_text('{"chat_template": "P"}')
    tokenizer = load_tokenizer(tmp_path)
    body: dict[str, Any] = {"messages": [user("hi")]}
    assert tokenizer.chat(body) == encode(raw, "P")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tokenizer.chat({**body, "tools": tools}) != encode(raw, "P")


def test_directories_without_a_tokenizer(tmp_path: Path) -> None:
    """A missing or empty directory is a configuration error that names it; nothing is downloaded."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=str(path)):
            load_tokenizer(path)


def test_threads_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    """Truncation changes a tokenizer's state: requests with and without it, at the same time, stay right."""
    asked: list[dict[str, Any]] = []
    for at in range(60):
        words = SENTENCES[at % 3] * (1 + at % 4)
        asked.append({"prompt": words, **({"truncate_prompt_tokens": 3 + at % 9} if at % 2 else {})})
    expected = [tokenizer.completion(body) for body in asked]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.completion, asked * 5)) == expected * 5


def test_torch_is_not_imported() -> None:
    """The router's installation has no torch, and none of this needs it."""
    assert "torch" not in sys.modules
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, ContentFormat.STRING),
        (PARTS_LOOP, ContentFormat.PARTS),
        (MACRO, ContentFormat.PARTS),
        (NAMESPACE, ContentFormat.STRING),
        (
            "{% for m in messages %}{% for c in m.content | list %}{% endfor %}{% endfor %}",
            ContentFormat.PARTS,
        ),
        (
            "{% for m in messages[1:] %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
            ContentFormat.PARTS,
        ),
        (
            "{% set x = messages %}{% for m in x %}{% for c in m.content %}{% endfor %}{% endfor %}",
            ContentFormat.PARTS,
        ),
        ("{% for content in y %}{% for c in content %}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}", ContentFormat.STRING),
        (
            "{% macro f(q) %}{% for c in q %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ f(q=m.content) }}{% endfor %}",
            ContentFormat.PARTS,
        ),
        ("{% for a, b in messages %}{% endfor %}", ContentFormat.STRING),
        ("{% for m in messages %}{% for c in m.other %}{% endfor %}{% endfor %}", ContentFormat.STRING),
        ("{% broken", ContentFormat.STRING),
    ],
)
def test_content_format(template: str, expected: ContentFormat) -> None:
    """A template that loops over a message's content, in whatever guise, gets parts; any other, text."""
    assert content_format(template) is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "text", "user", "auto", "سلام"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "function", "name"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "prompt", "tools", "chat_template_kwargs", "documents", "truncate_prompt_tokens"]
        ),
        JSON,
    )
)
def test_any_json_gives_ids_or_a_reason(tokenizer: Tokenizer, body: dict[str, Any]) -> None:
    """Whatever a client sends, there are ids or a reason, never an exception."""
    for found in (tokenizer.chat(body), tokenizer.completion(body)):
        assert isinstance(found, list | NotReproducible)
    for asked in (chat_request(body), completion_request(body)):
        assert isinstance(asked, dict | list | NotReproducible)


def test_asking_the_engine() -> None:
    """The body of `/tokenize` has what changes the prompt, under the names that endpoint knows."""
    body = {
        "model": "m",
        "messages": [user("hi")],
        "temperature": 1,
        "reasoning_effort": "low",
        "documents": [{"a": "b"}],
        "continue_final_message": False,
        "chat_template_kwargs": {"x": 1},
    }
    assert chat_request(body) == {
        "model": "m",
        "messages": [user("hi")],
        "continue_final_message": False,
        "chat_template_kwargs": {
            "x": 1,
            "enable_thinking": True,
            "documents": [{"a": "b"}],
            "reasoning_effort": "low",
        },
    }
    assert completion_request({"model": "m", "prompt": "p"}) == {"model": "m", "prompt": "p"}
    assert completion_request({"prompt": [1, 2]}) == [1, 2]
    for found in (chat_request({**body, "truncate_prompt_tokens": 4}), completion_request({"prompt": []})):
        assert isinstance(found, NotReproducible)


def test_the_engines_answer() -> None:
    """Ids are taken from the answer; anything else is an engine that failed to tokenize: the request is then
    routed without tokens."""
    assert token_ids(b'{"count":2,"max_model_len":9,"tokens":[1,2],"token_strs":null}') == [1, 2]
    for answer in (b"", b"{}", b'{"tokens":["a"]}', b'{"tokens":[-1]}', b'{"tokens":[4294967296]}', b"\xff"):
        with pytest.raises(UpstreamError):
            token_ids(answer)


def test_far_too_long_text_is_not_encoded(tokenizer: Tokenizer) -> None:
    """64 tokens of context, 20,000 characters, as text, in tools (through the template), or to be truncated:
    nothing that could fit, so the tokenizer is not kept busy with it."""
    words = "abcd " * 4000
    tools = [{"type": "function", "function": {"name": "f", "description": words}}]
    shown = "{% for tool in tools %}{{ tool.function.description }}{% endfor %}"
    for found in (
        tokenizer.completion({"prompt": words}),
        tokenizer.completion({"prompt": [words], "truncate_prompt_tokens": 4}),
        tokenizer.chat({"messages": [user("hi")], "tools": tools, "chat_template": shown}),
    ):
        assert reason(found) is Reason.TOO_LONG
    assert reason(tokenizer.completion({"prompt": "abcd " * 3000})) is None


def test_arguments_nested_too_deeply(tokenizer: Tokenizer) -> None:
    """A tool call whose arguments are 100,000 open brackets: no ids, no exception."""
    function = {"name": "f", "arguments": "[" * 100_000}
    call = {"id": "1", "type": "function", "function": function}
    body = {"messages": [user("hi"), {"role": "assistant", "tool_calls": [call]}]}
    assert reason(tokenizer.chat(body)) is Reason.MALFORMED
    assert isinstance(chat_request(body), NotReproducible)


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"])
def test_template_may_fail_as_it_likes(tokenizer: Tokenizer, template: str) -> None:
    """ZeroDivisionError, RecursionError: whatever a template raises means that there are no ids."""
    body = {"messages": [user("hi")], "chat_template": template}
    assert reason(tokenizer.chat(body)) is Reason.TEMPLATE_FAILED


def test_model_of_the_hub_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub name stands for its snapshot on this machine, the files beside the tokenizer's included; a name
    that is not there is an error, and nobody is asked for it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--org--oss"
    snapshot = cached / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).write_bytes((folder / name).read_bytes())
    (snapshot / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    harmony = load_tokenizer("org/oss")
    assert reason(harmony.chat({"messages": [user("hi")]})) is Reason.OWN_RENDERER
    assert reason(harmony.completion({"prompt": "hi"})) is None
    with pytest.raises(ConfigError, match="org/other"):
        load_tokenizer("org/other")
