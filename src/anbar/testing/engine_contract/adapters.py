"""Checks of LoRA adapters: their names, their own cache, their events; loading and unloading them.

Source: vLLM 0.32 `entrypoints/openai/models/serving.py`.
"""

from functools import partial

from anbar.testing.engine_contract.event_log import holds, on_device, published
from anbar.testing.engine_contract.samples import block_size
from anbar.testing.engine_contract.target import (
    Json,
    Reply,
    Target,
    call,
    complete,
    needs,
    needs_events,
    nonce,
    ok,
    refused,
    some_tokens,
)

_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_INPUT = "InvalidUserInput"


def check_adapter(target: Target) -> None:
    """An adapter answers under its own name and never shares blocks with its model."""
    needs(target.lora, "it serves no adapter")
    ids = some_tokens(target, 2 * block_size(target) + 1)
    ok(complete(target, ids, max_tokens=1))
    for cached in (0, 2 * block_size(target)):
        page = ok(complete(target, ids, model=target.lora, max_tokens=1))
        assert page["model"] == target.lora
        assert page["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def check_adapter_events(target: Target) -> None:
    """An adapter's events name it, and its name is among the extra keys of every block; a salt joins it in
    the first."""
    needs(target.lora, "it serves no adapter")
    needs_events(target)
    size = block_size(target)
    for salt, first in ((None, [target.lora]), ("s", [target.lora, "s"])):
        ids = some_tokens(target, 2 * size)
        fields: Json = {"model": target.lora, "max_tokens": 1, "cache_salt": salt}
        events = on_device(published(target, partial(_ask, target, ids, fields)))
        (event,) = [event for event in events if holds(event, ids)]
        assert event["lora_name"] == target.lora
        assert isinstance(event["lora_id"], int)
        assert [list(keys) for keys in event["extra_keys"]] == [first, [target.lora]]


def _ask(target: Target, ids: list[int], fields: Json) -> None:
    ok(complete(target, ids, **fields))


def check_runtime_adapter(target: Target) -> None:
    """An adapter that is loaded serves under its name, with blocks of its own, until it is unloaded; loading
    it again must be asked for."""
    needs(target.runtime_lora, "it loads no adapters")
    name = f"adapter-{nonce()}"
    adapter = {"lora_name": name, "lora_path": target.runtime_lora}
    ids = some_tokens(target, block_size(target) + 1)
    ok(complete(target, ids, max_tokens=1))
    try:
        _says(call(target, "POST", _LOAD, adapter), f"Success: LoRA adapter '{name}' added successfully.")
        again = refused(call(target, "POST", _LOAD, adapter), 400)
        wanted = (
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place"
        )
        assert again["message"].startswith(wanted), again
        assert again["type"] == _INPUT, again
        assert call(target, "POST", _LOAD, {**adapter, "load_inplace": True}).status == 200
        cards = ok(call(target, "GET", "/v1/models"))["data"]
        (card,) = [card for card in cards if card["id"] == name]
        assert (card["root"], card["parent"]) == (target.runtime_lora, target.model), card
        for cached in (0, block_size(target)):
            page = ok(complete(target, ids, model=name, max_tokens=1))
            assert page["model"] == name
            assert page["usage"]["prompt_tokens_details"]["cached_tokens"] == cached, page
    finally:
        gone = call(target, "POST", _UNLOAD, {"lora_name": name})
    _says(gone, f"Success: LoRA adapter '{name}' removed successfully.")
    assert refused(complete(target, ids, model=name), 404)["type"] == "NotFoundError"
    assert name not in [card["id"] for card in ok(call(target, "GET", "/v1/models"))["data"]]


def check_runtime_adapter_refusals(target: Target) -> None:
    """Adapters without a name, or with the model's name; adapters that are not there."""
    needs(target.runtime_lora, "it loads no adapters")
    path = target.runtime_lora
    nameless = "Both 'lora_name' and 'lora_path' must be provided."
    taken = f"The lora adapter '{target.model}' conflicts with a served base model."
    unnamed = "'lora_name' needs to be provided to unload a LoRA adapter."
    rows: tuple[tuple[str, Json, int, str, str], ...] = (
        (_LOAD, {"lora_name": "", "lora_path": ""}, 400, _INPUT, nameless),
        (_LOAD, {"lora_name": target.model, "lora_path": path}, 400, _INPUT, taken),
        (_UNLOAD, {"lora_name": ""}, 400, _INPUT, unnamed),
        (_UNLOAD, {"lora_name": "x"}, 404, "NotFoundError", "The lora adapter 'x' cannot be found."),
    )
    for where, body, status, kind, message in rows:
        error = refused(call(target, "POST", where, body), status)
        assert (error["type"], error["param"], error["message"]) == (kind, None, message), (body, error)
    for where, absent, param in (
        (_LOAD, {}, "body.lora_name"),
        (_LOAD, {"lora_name": "x"}, "body.lora_path"),
        (_UNLOAD, {}, "body.lora_name"),
    ):
        error = refused(call(target, "POST", where, absent), 400)
        assert (error["type"], error["param"]) == ("Bad Request", param), error


def _says(reply: Reply, text: str) -> None:
    """A 200 in words, which vLLM gives no content type."""
    assert (reply.status, reply.body.decode()) == (200, text), reply
    assert "content-type" not in reply.headers, reply
