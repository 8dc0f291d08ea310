"""Checks of names: the cards of what is served, and names of what is not."""

from anbar.testing.engine_contract.target import Json, Target, call, ok, refused

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
    work: tuple[tuple[str, Json], ...] = (
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    )
    if target.embeds:
        work = (("/v1/embeddings", {"input": "a"}),)
    bodies = (*work, ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]}))
    for path, body in bodies:
        error = refused(call(target, "POST", path, {**body, "model": "no-such-model"}), 404)
        wanted = "The model `no-such-model` does not exist."
        if path != "/v1/embeddings":
            wanted += f" Valid aliases: {target.model}."
        named = None if path == "/v1/embeddings" else "model"
        assert (error["message"], error["type"], error["param"]) == (wanted, "NotFoundError", named), path
    for model in (None, ""):
        for path, body in work:
            assert ok(call(target, "POST", path, {**body, "model": model}))["model"] == target.model
