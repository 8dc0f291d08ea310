"""Checks of HTTP itself: methods, paths, keys, kinds of bodies."""

from dataclasses import replace

from anbar.testing.engine_contract.target import Target, call, ok

_ABSENT = (("GET", "/tokenizer_info"),)
_GENERATION = (("POST", "/v1/completions"), ("POST", "/v1/chat/completions"))
_POOLING = (("POST", "/v1/embeddings"), ("POST", "/pooling"), ("POST", "/score"))
_ADAPTERS = (("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter"))
_DEVELOPMENT = (
    *(("POST", path) for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")),
    *(("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")),
)


def check_keys(target: Target) -> None:
    """The key guards the API's paths, existing or not, and nothing else; its refusal has no error object."""
    if not target.api_key:
        ok(call(replace(target, api_key="any"), "GET", "/v1/models"))
        return
    for key in ("", "wrong", target.api_key.upper() + "x"):
        stranger = replace(target, api_key=key)
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/v1/nothing"),
            ("GET", "/v1x"),
            ("POST", "/v1/completions"),
        ):
            reply = call(stranger, method, path, b"not even JSON")
            assert (reply.status, reply.json) == (401, {"error": "Unauthorized"}), path
        for path in ("/health", "/version", "/metrics", "/load", "/kv_event_sources"):
            assert call(stranger, "GET", path).status == 200, path
        ok(call(stranger, "POST", "/tokenize", {"prompt": "a"}))
    for scheme in ("bearer", "BEARER"):
        headers = {"authorization": f"{scheme} {target.api_key}"}
        ok(call(replace(target, api_key=""), "GET", "/v1/models", headers=headers))
    for value in (target.api_key, f"Basic {target.api_key}"):
        reply = call(replace(target, api_key=""), "GET", "/v1/models", headers={"authorization": value})
        assert reply.status == 401, value


def check_pages(target: Target) -> None:
    """The small pages: /ping by GET and POST, the load that nobody counts, cross-origin headers."""
    for method in ("GET", "POST"):
        reply = call(target, method, "/ping")
        assert (reply.status, reply.body) == (200, b""), method
    assert ok(call(target, "GET", "/load")) == {"server_load": 0}
    assert set(ok(call(target, "GET", "/version"))) == {"version"}
    assert call(target, "GET", "/health").headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in call(target, "GET", "/health").headers


def check_methods(target: Target) -> None:
    """A wrong method is a 405 that names the right one, HEAD included; a path with a slash too many is sent
    to the right one; what does not exist is a 404."""
    work = "/v1/embeddings" if target.embeds else "/v1/completions"
    wrong = (
        *((method, work, "POST") for method in ("GET", "PUT", "OPTIONS")),
        ("GET", "/tokenize", "POST"),
        *(("POST", path, "GET") for path in ("/v1/models", "/health", "/version")),
        ("HEAD", "/health", "GET"),
    )
    for method, path, allowed in wrong:
        reply = call(target, method, path)
        assert (reply.status, reply.headers.get("allow")) == (405, allowed), (method, path)
        if method != "HEAD":
            assert reply.json == {"detail": "Method Not Allowed"}, (method, path)
    for method, path in (("GET", "/health/"), ("POST", f"{work}/")):
        reply = call(target, method, path)
        assert reply.status == 307, path
        assert reply.headers["location"].endswith(path.rstrip("/")), path
    for method, path in (("GET", "/nothing"), ("POST", "/v1/nothing"), ("GET", "/v1/models/x"), ("GET", "/")):
        reply = call(target, method, path)
        assert (reply.status, reply.json) == (404, {"detail": "Not Found"}), path


def check_absent_endpoints(target: Target) -> None:
    """What an engine has not is the framework's 404: embeddings of a model that generates, answers of one
    that embeds, adapters that are loaded over HTTP, sleep and resets without development mode."""
    absent = [*_ABSENT, *(_GENERATION if target.embeds else _POOLING)]
    absent += [] if target.dev_mode else _DEVELOPMENT
    absent += [] if target.runtime_lora else _ADAPTERS
    for method, path in absent:
        reply = call(target, method, path, {} if method == "POST" else None)
        assert (reply.status, reply.json) == (404, {"detail": "Not Found"}), path
