"""From a body to the token ids of its prompts.

Source: vLLM 0.32 `renderers/online_renderer.py`, `renderers/hf.py`, `v1/engine/input_processor.py`.
"""

from typing import cast

from anbar.testing.fake_engine.errors import ApiError, Json, invalid, refused
from anbar.testing.fake_engine.tokenizer import FakeTokenizer, TemplateError

Prompts = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
"""Texts and token ids, one of each per prompt."""


def chat_prompt(body: Json, tokenizer: FakeTokenizer) -> Prompts:
    messages = cast(list[object], body["messages"])
    for index, message in enumerate(messages):
        where = f"body.messages.{index}"
        if not isinstance(message, dict):
            raise invalid(f"{{'type': 'dict_type', 'loc': '{where}'}}", where)
        if not isinstance(message.get("role"), str):
            raise invalid(f"{{'type': 'missing', 'loc': '{where}.role'}}", f"{where}.role")
        if not isinstance(message.get("content"), str | list | None):
            raise invalid(f"{{'type': 'string_type', 'loc': '{where}.content'}}", f"{where}.content")
    if body.get("continue_final_message") and body.get("add_generation_prompt", True):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    try:
        text = tokenizer.chat_text(
            cast(list[Json], messages),
            add_generation_prompt=bool(body.get("add_generation_prompt", True)),
            continue_final_message=bool(body.get("continue_final_message")),
            variables=_template_variables(body),
        )
    except TemplateError as error:
        raise ApiError(str(error)) from error
    special = bool(body.get("add_special_tokens", False))
    return (text,), (tuple(tokenizer.encode(text, special=special)),)


def _template_variables(body: Json) -> dict[str, object]:
    """What a request gives the template beside its messages (`build_chat_params`)."""
    asked = cast(Json, body.get("chat_template_kwargs") or {})
    own: dict[str, object] = {
        "documents": body.get("documents"),
        "reasoning_effort": body.get("reasoning_effort"),
    }
    if own["reasoning_effort"] is not None and "enable_thinking" not in asked:
        own["enable_thinking"] = own["reasoning_effort"] != "none"
    if body.get("tools") is not None:
        own["tools"] = [_tool(cast(Json, tool)) for tool in cast(list[object], body["tools"])]
    return {**asked, **{name: value for name, value in own.items() if value is not None}}


def _tool(tool: Json) -> Json:
    """A tool as vLLM's model of it prints: known keys in order, null where not given."""
    function = cast(Json, tool.get("function") or {})
    shown = {name: function.get(name) for name in ("name", "description", "parameters")}
    rare = {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": {**shown, **rare}}


def completion_prompts(body: Json, tokenizer: FakeTokenizer) -> Prompts:
    prompt = body.get("prompt")
    if prompt is None or prompt in ("", []):
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    special = bool(body.get("add_special_tokens", True))
    items = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else cast(list[object], prompt)
    texts: list[str] = []
    prompts: list[tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            prompts.append(tuple(tokenizer.encode(item, special=special)))
        elif _is_ids(item):
            ids = tuple(cast(list[int], item))
            outside = [token for token in ids if token < 0 or token >= tokenizer.vocab_size]
            if outside:
                raise ApiError(f"Token id {outside[0]} is out of vocabulary", param="prompt")
            texts.append(tokenizer.decode(ids))
            prompts.append(ids)
        else:
            raise invalid("{'type': 'string_type', 'loc': 'body.prompt'}", "body.prompt")
    if any(not ids for ids in prompts):
        raise ApiError("The decoder prompt cannot be empty")
    return tuple(texts), tuple(prompts)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
