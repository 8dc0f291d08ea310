"""Checks of model cards and of a LoRA adapter: its name, its own cache, its events."""

from functools import partial

from anbar.testing.engine_contract.event_log import holds, on_device, published, some_tokens
from anbar.testing.engine_contract.target import Json, Target, block_size, call, complete, ok, refused

_CARD = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
_PERMISSION = {
    *("id", "object", "created", "allow_create_engine", "allow_sampling", "allow_logprobs"),
    *("allow_search_indices", "allow_view", "allow_fine_tuning", "organization", "group", "is_blocking"),
}


def check_model_cards(target: Target) -> None:
    """Cards have vLLM's fields: the model first, adapters after it, each with its model as parent."""
    page = ok(call(target, "GET", "/v1/models"))
    assert set(page) == {"object", "data"}
    for card in page["data"]:
        assert set(card) == _CARD, card
        assert (card["object"], card["owned_by"]) == ("model", "vllm"), card
        (permission,) = card["permission"]
        assert set(permission) == _PERMISSION, permission
        assert permission["id"].startswith("modelperm-")
    names = [card["id"] for card in page["data"]]
    assert names[0] == target.model
    if target.lora:
        card = page["data"][names.index(target.lora)]
        assert (card["parent"], card["max_model_len"]) == (target.model, None), card


def check_unknown_model(target: Target) -> None:
    """A model that is not served is a 404 that names the served ones, wherever it stands; none named, or an
    empty name, means the served one."""
    bodies: tuple[tuple[str, Json], ...] = (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    )
    wanted = f"The model `no-such-model` does not exist. Valid aliases: {target.model}."
    for path, body in bodies:
        error = refused(call(target, "POST", path, {**body, "model": "no-such-model"}), 404)
        assert (error["message"], error["type"], error["param"]) == (wanted, "NotFoundError", "model"), path
    for model in (None, ""):
        assert ok(complete(target, "a", model=model, max_tokens=1))["model"] == target.model


def check_adapter(target: Target) -> None:
    """An adapter answers under its own name and never shares blocks with its model."""
    if not target.lora:
        return
    ids = some_tokens(target, 2 * block_size(target) + 1)
    ok(complete(target, ids, max_tokens=1))
    for cached in (0, 2 * block_size(target)):
        page = ok(complete(target, ids, model=target.lora, max_tokens=1))
        assert page["model"] == target.lora
        assert page["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def check_adapter_events(target: Target) -> None:
    """An adapter's events name it, and its name is among the extra keys of every block; a salt joins it in
    the first."""
    if not target.lora or not target.events:
        return
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
