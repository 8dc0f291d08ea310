"""Checks of what an engine has only when it is told so: development endpoints, adapters, keys."""

from anbar.testing.engine_contract.target import Target, call

_DEVELOPMENT = (
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("GET", "/is_sleeping"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
)
_ABSENT = (
    ("POST", "/v1/embeddings"),
    ("POST", "/pooling"),
    ("POST", "/score"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/tokenizer_info"),
)


def check_absent_endpoints(target: Target) -> None:
    """A model that generates has no embeddings; adapters are not loaded over HTTP; without development mode
    there is no sleep and no reset: all that is the framework's 404."""
    absent = _ABSENT if target.dev_mode else (*_ABSENT, *_DEVELOPMENT)
    for method, path in absent:
        reply = call(target, method, path, {} if method == "POST" else None)
        assert (reply.status, reply.json) == (404, {"detail": "Not Found"}), path
