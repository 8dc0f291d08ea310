"""The token ids that vLLM computes for a request, without vLLM and without torch.

Source: vLLM 0.32 `renderers/online_renderer.py`, `renderers/hf.py`, `renderers/params.py` and the
`build_*_params` of `entrypoints/openai/{completion,chat_completion}/protocol.py`. The tokenizer and the
template engine are the same as vLLM's, the `transformers` library; what vLLM does before and after them
is done here likewise. Text is encoded without truncation: a prompt that is too long is the caller's to
refuse, and its true length is known.
"""

import copy
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from anbar.adapters.vllm.chat_messages import (
    Message,
    Reason,
    Unreproducible,
    conversation,
    tool_dicts,
    without_developer,
)
from anbar.adapters.vllm.chat_render import may_render, render
from anbar.adapters.vllm.chat_template import ContentFormat, content_format
from anbar.adapters.vllm.encoder import Describing, Encoder, exact_encoder
from anbar.adapters.vllm.reading import Reading, read_already
from anbar.adapters.vllm.tokenizer_files import tokenizer_folder
from anbar.core.errors import ConfigError
from anbar.core.request import MAX_CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class NotReproducible:
    """Why a request's token ids cannot be computed here; `detail` holds no text of the request."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """What an engine was started with that changes its prompts."""

    max_model_len: int | None = None
    """Tokens of its context: requests may ask to be truncated to it, and far longer text is not tokenized."""
    chat_template: str | None = None
    """The text of `--chat-template`."""
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """`--default-chat-template-kwargs`."""
    trust_request_template: bool = False
    """`--trust-request-chat-template`. Without it the engine refuses a request's own template, and it is
    not run here either: a template is a program, and may run for ever."""
    content_format: ContentFormat | None = None
    """`--chat-template-content-format`; None: told from the template."""
    exclude_tools_when_none: bool = False
    """`--exclude-tools-when-tool-choice-none`."""
    cache_bytes: int = 64 << 20
    """Not the engine's: memory for the ids of texts seen before, some 8 bytes a token with their texts."""


class FastBackend(Describing, Protocol):
    """What is used of a `tokenizers.Tokenizer`."""

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...


class HfTokenizer(Protocol):
    """What is used of a `transformers` tokenizer."""

    is_fast: bool

    @property
    def special_tokens_map(self) -> Mapping[str, object]: ...

    def __call__(
        self, text: str, *, add_special_tokens: bool, truncation: bool, max_length: int | None
    ) -> Mapping[str, list[int]]: ...

    def apply_chat_template(self, conversation: object, **kwargs: object) -> str: ...

    def get_chat_template(
        self, chat_template: str | None = None, tools: list[dict[str, object]] | None = None
    ) -> str: ...


OWN_RENDERERS: Mapping[str, str] = {
    "MoonshotKimiaForCausalLM": "kimi_audio",
    "KimiK3ForConditionalGeneration": "kimi_k3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
    "InklingForCausalLM": "inkling",
    "InklingForConditionalGeneration": "inkling",
    "GptOssForCausalLM": "harmony",
}
"""Architectures whose chats vLLM renders by code of its own (0.32 `config/model.py`,
`online_renderer.py`)."""

OWN_TOKENIZERS = frozenset(("mistral", "kimi_audio"))
"""Of these, the ones whose plain text is tokenized by code of vLLM's own too."""

COMPLETION_MAX_TOKENS = 16
"""vLLM's default of `max_tokens` in `/v1/completions`."""

_FOR_THE_TEMPLATE = frozenset(
    (
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "documents",
        "reasoning_effort",
    )
)
"""Members of a request that become arguments of the template, beside its tools."""

SERVER_SIDE = frozenset(("chat_template", "tokenize"))
"""Template arguments that a request may not set."""


Found: TypeAlias = list[int] | Reading
"""Ids that are there, or text that is to be read."""


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads; encoding lets other threads run meanwhile."""

    def __init__(
        self,
        hf: HfTokenizer,
        options: TokenizerOptions,
        *,
        own_renderer: str | None = None,
        processor_template: str | None = None,
    ) -> None:
        self._hf = hf
        self._options = options
        self._own_renderer = own_renderer
        self._processor_template = processor_template
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None
        self.note = "it is not a fast tokenizer"
        """Why texts are always tokenized as a whole; "" when they are not."""
        backend = cast("FastBackend | None", getattr(hf, "backend_tokenizer", None))
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()
            self._encoder, self.note = exact_encoder(backend, options.cache_bytes)
        self._guarded = copy.deepcopy(hf)
        """For calls that change the tokenizer's state (truncation) and for tokenizers without a fast
        backend."""

    @cached_property
    def _special_tokens(self) -> Mapping[str, object]:
        return self._hf.special_tokens_map

    @cached_property
    def _plain_kwargs(self) -> Mapping[str, object]:
        """The template's arguments for a request that says nothing of them, as most do."""
        return self._template_kwargs({}, None)

    @property
    def has_short_pieces(self) -> bool:
        """Whether the first ids of a long text are there without encoding it all."""
        return self._encoder is not None and self._encoder.has_short_pieces

    def completion(self, body: Mapping[str, object]) -> list[int] | NotReproducible:
        """The prompt of a `/v1/completions` request; `body` is the request's JSON."""
        return _whole(self._reproduce(self._completion, body))

    def chat(self, body: Mapping[str, object]) -> list[int] | NotReproducible:
        """The prompt of a `/v1/chat/completions` request; `body` is the request's JSON and stays as it is."""
        return _whole(self._reproduce(self._chat, body))

    def read_completion(self, body: Mapping[str, object]) -> Reading | NotReproducible:
        """The same as `completion`, to be tokenized as far as it is needed."""
        return _reading(self._reproduce(self._completion, body))

    def read_chat(self, body: Mapping[str, object]) -> Reading | NotReproducible:
        """The same as `chat`, to be tokenized as far as it is needed."""
        return _reading(self._reproduce(self._chat, body))

    def _reproduce(
        self, compute: Callable[[Mapping[str, object]], Found], body: Mapping[str, object]
    ) -> Found | NotReproducible:
        try:
            return compute(body)
        except Unreproducible as error:
            return NotReproducible(error.reason, error.detail)

    def _completion(self, body: Mapping[str, object]) -> Found:
        if self._own_renderer in OWN_TOKENIZERS:
            raise Unreproducible(Reason.OWN_RENDERER, str(self._own_renderer))
        if body.get("prompt_embeds") is not None:
            raise Unreproducible(Reason.MEDIA, "prompt embeddings")
        prompt = single_prompt(body.get("prompt"))
        if isinstance(prompt, list):
            return self._truncated(prompt, body)
        return self._encode(prompt, body, add_special_tokens=_flag(body, "add_special_tokens", True))

    def _chat(self, body: Mapping[str, object]) -> Found:
        if self._own_renderer is not None:
            raise Unreproducible(Reason.OWN_RENDERER, self._own_renderer)
        tools = tool_dicts(body.get("tools"))
        if body.get("tool_choice") == "none" and self._options.exclude_tools_when_none:
            tools = None
        plain = tools is None and _FOR_THE_TEMPLATE.isdisjoint(body)
        kwargs = self._plain_kwargs if plain else self._template_kwargs(body, tools)
        template = self._template(body, cast("list[dict[str, object]] | None", kwargs.get("tools")))
        form = self._options.content_format or content_format(template)
        messages = without_developer(conversation(body.get("messages"), form), template)
        text = self._render(list(messages), template, kwargs)
        return self._encode(text, body, add_special_tokens=_flag(body, "add_special_tokens", False))

    def _template_kwargs(
        self, body: Mapping[str, object], tools: list[dict[str, object]] | None
    ) -> dict[str, object]:
        """The template's arguments: the server's defaults, then the request's, then the API's own fields."""
        asked = body.get("chat_template_kwargs")
        if asked is not None and not isinstance(asked, dict):
            raise Unreproducible(Reason.MALFORMED, "chat_template_kwargs is not an object")
        asked = asked or {}
        if SERVER_SIDE & asked.keys():
            raise Unreproducible(Reason.MALFORMED, "chat_template_kwargs sets what only the server may")
        own: dict[str, object] = {
            "add_generation_prompt": _flag(body, "add_generation_prompt", True),
            "continue_final_message": _flag(body, "continue_final_message", False),
            "documents": body.get("documents"),
            "reasoning_effort": body.get("reasoning_effort"),
        }
        if own["reasoning_effort"] is not None and "enable_thinking" not in asked:
            own["enable_thinking"] = own["reasoning_effort"] != "none"
        defaults = {**self._options.chat_template_kwargs, **_given({"tools": tools})}
        return {**defaults, **_given({**asked, **_given(own)})}

    def _template(self, body: Mapping[str, object], tools: list[dict[str, object]] | None) -> str:
        if body.get("chat_template") is not None and not self._options.trust_request_template:
            raise Unreproducible(Reason.UNTRUSTED_TEMPLATE, "the request brings a chat template of its own")
        chosen = body.get("chat_template") or self._options.chat_template
        if chosen is not None and not isinstance(chosen, str):
            raise Unreproducible(Reason.MALFORMED, "chat_template is not text")
        if chosen is None and tools is None and self._processor_template is not None:
            return self._processor_template
        try:
            return self._hf.get_chat_template(chosen, tools=tools)
        except ValueError as error:
            raise Unreproducible(Reason.NO_TEMPLATE, "the tokenizer has no chat template") from error

    def _render(self, messages: list[Message], template: str, kwargs: Mapping[str, object]) -> str:
        fixed = {"chat_template": template, "tokenize": False, "return_dict": False}
        try:
            if may_render(kwargs):
                return render(template, messages, kwargs, self._special_tokens)
            return self._hf.apply_chat_template(messages, **{**kwargs, **fixed})
        except Exception as error:
            # A template is a program that came with the model: what it raises at odd input is its to choose
            # (RecursionError for deep arguments, ZeroDivisionError, …), and none of it is a defect here. The
            # text of the error may repeat the request's, so only its kind is told.
            raise Unreproducible(Reason.TEMPLATE_FAILED, type(error).__name__) from error

    def _encode(self, text: str, body: Mapping[str, object], *, add_special_tokens: bool) -> Found:
        longest = self._options.max_model_len
        if longest is not None and len(text) > MAX_CHARS_PER_TOKEN * longest:
            # Encoding takes a second per megabyte, and the engine will refuse it.
            raise Unreproducible(Reason.TOO_LONG, f"{len(text)} characters for {longest} tokens")
        limit = self._limit(body)
        if limit is None and self._encoder is not None:
            return self._encoder.read(text, add_special_tokens=add_special_tokens)
        if limit is None or body.get("truncation_side") is not None or not self._hf.is_fast:
            limit = None
        with self._lock:
            encoded = self._guarded(
                text, add_special_tokens=add_special_tokens, truncation=limit is not None, max_length=limit
            )
        return self._truncated(list(encoded["input_ids"]), body)

    def _truncated(self, ids: list[int], body: Mapping[str, object]) -> list[int]:
        limit = self._limit(body)
        if limit is None or limit >= len(ids):
            return ids
        if body.get("truncation_side") == "right":
            return ids[:limit]
        return ids[len(ids) - limit :]

    def _limit(self, body: Mapping[str, object]) -> int | None:
        """Tokens that `truncate_prompt_tokens` leaves; -1 there means the context but for one token."""
        limit = body.get("truncate_prompt_tokens")
        if limit is None:
            return None
        if type(limit) is not int or limit < -1:
            raise Unreproducible(Reason.MALFORMED, "truncate_prompt_tokens is not a number from -1 up")
        if limit >= 0:
            return limit
        if self._options.max_model_len is None:
            raise Unreproducible(Reason.TRUNCATION, "the context length is not known")
        output = body.get("max_completion_tokens")
        if output is None:
            output = body.get("max_tokens", COMPLETION_MAX_TOKENS if "prompt" in body else None)
        return self._options.max_model_len - (1 if output else 0)


def _reading(found: Found | NotReproducible) -> Reading | NotReproducible:
    if not isinstance(found, list):
        return found
    try:
        return read_already(found)
    except OverflowError:
        return NotReproducible(Reason.MALFORMED, "a token id is beyond all vocabularies")


def _whole(found: Found | NotReproducible) -> list[int] | NotReproducible:
    return found.whole().tolist() if isinstance(found, Reading) else found


def _given(values: Mapping[str, object]) -> dict[str, object]:
    """Without what means «not set» to vLLM (`renderers/params.py`, `merge_kwargs`)."""
    return {key: value for key, value in values.items() if value is not None and value != "auto"}


def _flag(body: Mapping[str, object], key: str, default: bool) -> bool:
    value = body.get(key, default)
    if not isinstance(value, bool):
        raise Unreproducible(Reason.MALFORMED, f"{key} is neither true nor false")
    return value


def single_prompt(prompt: object) -> str | list[int]:
    """A completion's prompt as text or ids; a list of one prompt is that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        return single_prompt(prompt[0])
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise Unreproducible(Reason.MALFORMED, "prompt is neither text nor token ids")
    if set(map(type, prompt)) == {int} and min(prompt) >= 0:  # a long prompt: no loop of our own
        return list(prompt)
    if all(isinstance(entry, str | list) for entry in prompt):
        raise Unreproducible(Reason.SEVERAL_PROMPTS, f"{len(prompt)} prompts in one request")
    raise Unreproducible(Reason.MALFORMED, "prompt is neither text nor token ids")


def _own_renderer(folder: Path) -> str | None:
    """The renderer of vLLM's own that serves the model in `folder`, if not the one for templates."""
    if (folder / "tekken.json").exists() or any(folder.glob("tokenizer.model.v*")):
        return "mistral"
    architectures = _json_file(folder / "config.json").get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return next((OWN_RENDERERS[name] for name in names if name in OWN_RENDERERS), None)


def _processor_template(folder: Path) -> str | None:
    """The chat template of a multimodal model's processor, which comes before the tokenizer's."""
    if not any((folder / name).exists() for name in ("processor_config.json", "preprocessor_config.json")):
        return None
    template = _json_file(folder / "chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def _json_file(path: Path) -> Mapping[str, object]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def load_tokenizer(path: str | Path, options: TokenizerOptions | None = None) -> Tokenizer:
    """The tokenizer in a directory (or in the local hub cache, by name). Never reaches out to a network.

    Raises ConfigError when there is none, or none that can be used without running code it ships.
    """
    # transformers takes a second to import, and not every router needs it. It would warn that there is no
    # torch, which is meant.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        # The directory itself, also for a hub name: files beside the tokenizer's say how chats are rendered.
        folder = tokenizer_folder(path)
        hf = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, truncation_side="left"
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise ConfigError(f"tokenizer: {str(path)!r} has no tokenizer that can be loaded: {error}") from error
    return Tokenizer(
        cast("HfTokenizer", hf),
        options or TokenizerOptions(),
        own_renderer=_own_renderer(folder),
        processor_template=_processor_template(folder),
    )
