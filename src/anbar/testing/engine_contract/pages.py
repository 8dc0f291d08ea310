"""Checks of the pages around generation: health, models, metrics, tokenize, refusals."""

from collections.abc import Sequence

from anbar.testing.engine_contract.samples import block_size, metrics, samples
from anbar.testing.engine_contract.target import (
    Target,
    call,
    complete,
    context_length,
    nonce,
    ok,
    refused,
    tokens,
)

_METRICS = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:num_preemptions_total": "counter",
    "vllm:prompt_tokens_total": "counter",
    "vllm:prompt_tokens_by_source_total": "counter",
    "vllm:prompt_tokens_cached_by_source_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:request_success_total": "counter",
}


def check_health(target: Target) -> None:
    """/health is 200 and empty, /version names a version, unknown paths are the framework's 404."""
    health = call(target, "GET", "/health")
    assert (health.status, health.body) == (200, b"")
    assert isinstance(ok(call(target, "GET", "/version"))["version"], str)
    for path, status in (("/v1/nothing", 404), ("/tokenize", 405)):
        reply = call(target, "GET", path)
        assert reply.status == status
        assert isinstance(reply.json["detail"], str)


def check_models(target: Target) -> None:
    """/v1/models lists the served name with its root directory and context length."""
    page = ok(call(target, "GET", "/v1/models"))
    assert page["object"] == "list"
    card = next(card for card in page["data"] if card["id"] == target.model)
    assert card["object"] == "model"
    assert isinstance(card["root"], str)
    assert isinstance(card["max_model_len"], int)
    assert card["parent"] is None


def check_metrics(target: Target) -> None:
    """The metrics that the probe and the tests read exist, with vLLM's types and labels."""
    page = metrics(target)
    for name, kind in _METRICS.items():
        family = name.removesuffix("_total") if f"# TYPE {name} " not in page else name
        assert f"# TYPE {family} {kind}" in page, f"{name} is not a {kind}"
        assert samples(page, name), f"{name} has no sample"
    sources = {sample.labels["source"] for sample in samples(page, "vllm:prompt_tokens_by_source_total")}
    assert sources == {"local_compute", "local_cache_hit", "external_kv_transfer"}
    assert block_size(target) >= 1


def check_tokenize(target: Target) -> None:
    """/tokenize gives the ids that a prompt has, for text and for chats: usage counts the same."""
    text = f"{nonce()} سلام नमस्ते"
    assert len(tokens(target, text)) == ok(complete(target, text))["usage"]["prompt_tokens"]
    messages = [{"role": "user", "content": text}]
    body = {"model": target.model, "messages": messages}
    page = ok(call(target, "POST", "/tokenize", body))
    assert page["count"] == len(page["tokens"])
    assert isinstance(page["max_model_len"], int)
    usage = ok(call(target, "POST", "/v1/chat/completions", {**body, "max_tokens": 1}))["usage"]
    assert page["count"] == usage["prompt_tokens"]


def check_refusals(target: Target) -> None:
    """What is wrong with a request is a 4xx in one shape, whatever it is."""
    path, good = "/v1/completions", {"model": target.model, "prompt": "a", "max_tokens": 1}
    missing = refused(call(target, "POST", path, {**good, "model": "no-such-model"}), 404)
    assert (missing["type"], missing["param"]) == ("NotFoundError", "model")
    wrong: Sequence[tuple[str, object]] = (
        (path, b'{"model": '),
        (path, b"[1, 2]"),
        (path, {**good, "max_tokens": "many"}),
        (path, {**good, "temperature": 99}),
        (path, {**good, "max_tokens": 0}),
        (path, {**good, "max_tokens": 10**8}),
        (path, {**good, "prompt": ""}),
        (path, {**good, "stream_options": {"include_usage": True}}),
        (path, {**good, "cache_salt": "a/b"}),
        (path, {**good, "prompt": [1] * (context_length(target) + 1)}),
        (path, {**good, "prompt": [1] * context_length(target)}),
        ("/v1/chat/completions", {"model": target.model, "messages": "hello"}),
        ("/v1/chat/completions", {"model": target.model}),
        ("/v1/chat/completions", {"model": target.model, "messages": [{"content": "no role"}]}),
    )
    for where, body in wrong:
        refused(call(target, "POST", where, body), 400)
