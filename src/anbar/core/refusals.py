"""Refusals that more than one part has to make, in the same words: OpenAI's shape, fit for a client."""

from anbar.core.errors import RequestError


def unknown_model(model: str) -> RequestError:
    """No engine serves `model`: 404."""
    text = f"The model {model[:200]!r} does not exist. GET /v1/models names those that do."
    return RequestError(text, status=404, code="model_not_found", param="model")


def prompt_too_long(num_tokens: int, max_model_len: int, param: str | None = None) -> RequestError:
    """A prompt leaves no room for an answer, or does not fit at all: 400."""
    return RequestError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{num_tokens} tokens, which leaves no room for an answer. Please shorten the prompt.",
        param=param,
        code="context_length_exceeded",
    )
