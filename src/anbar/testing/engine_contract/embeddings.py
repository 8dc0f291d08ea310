"""Checks of /v1/embeddings. Source: vLLM 0.32 `entrypoints/pooling/embed/`."""

import base64
import re
import struct

from anbar.testing.engine_contract.completions import USAGE
from anbar.testing.engine_contract.refusals import EMBEDDINGS, TYPE, Refusal, checked, plain, value
from anbar.testing.engine_contract.target import (
    Json,
    Target,
    call,
    context_length,
    nonce,
    ok,
    refused,
    tokens,
)

Vector = list[float]


def check_embedding(target: Target) -> None:
    """One text: one vector of length 1, named, numbered and counted."""
    text = nonce()
    page = _embedded(target, text)
    assert set(page) == {"id", "object", "created", "model", "data", "usage"}, page
    assert re.fullmatch("embd-[0-9a-f]+", page["id"]), page["id"]
    assert (page["object"], page["model"]) == ("list", target.model)
    (item,) = page["data"]
    assert set(item) == {"index", "object", "embedding"}, item
    assert (item["index"], item["object"]) == (0, "embedding")
    assert abs(sum(x * x for x in item["embedding"]) - 1) < 1e-3
    count = len(tokens(target, text))
    usage = page["usage"]
    assert set(usage) == USAGE, usage
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (count, count), usage
    assert usage["completion_tokens"] == 0, usage


def check_embedding_batches(target: Target) -> None:
    """Several inputs have a vector each, in order; texts and their ids are the same, equal inputs equal."""
    first, second = nonce(), f"{nonce()} b c"
    page = _embedded(target, [first, second, first])
    assert [item["index"] for item in page["data"]] == [0, 1, 2]
    vectors = [item["embedding"] for item in page["data"]]
    assert _near(vectors[0], vectors[2])
    assert not _near(vectors[0], vectors[1])
    ids = [tokens(target, text) for text in (first, second)]
    assert page["usage"]["prompt_tokens"] == sum(map(len, (*ids, ids[0])))
    same = _embedded(target, ids)["data"]
    assert _near(same[0]["embedding"], vectors[0])
    assert _near(same[1]["embedding"], vectors[1])
    alone = _embedded(target, ids[1])["data"]
    assert _near(alone[0]["embedding"], vectors[1])


def check_embedding_formats(target: Target) -> None:
    """`base64` is the same vector in bytes: little-endian floats of four bytes."""
    text = nonce()
    plain_vector = _embedded(target, text)["data"][0]["embedding"]
    packed = _embedded(target, text, encoding_format="base64")["data"][0]["embedding"]
    assert isinstance(packed, str)
    data = base64.b64decode(packed, validate=True)
    assert _near(list(struct.unpack(f"<{len(data) // 4}f", data)), plain_vector)


def check_embedding_chats(target: Target) -> None:
    """Messages go through the model's template, as /tokenize does it."""
    messages = [{"role": "user", "content": nonce()}]
    page = ok(call(target, "POST", EMBEDDINGS, {"model": target.model, "messages": messages}))
    body = {"model": target.model, "messages": messages, "add_generation_prompt": False}
    count = ok(call(target, "POST", "/tokenize", body))["count"]
    assert page["usage"]["prompt_tokens"] == count, page["usage"]


def check_embedding_lengths(target: Target) -> None:
    """Inputs as long as the context are taken, longer ones cut or refused."""
    length = context_length(target)
    whole = _embedded(target, [5] * length)
    assert whole["usage"]["prompt_tokens"] == length
    cut = _embedded(target, [5] * (length + 9), truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == length
    assert _embedded(target, f"{nonce()} b c", truncate_prompt_tokens=2)["usage"]["prompt_tokens"] == 2


def check_embedding_ids(target: Target) -> None:
    """An answer's id is the caller's, as in completions."""
    name = nonce()
    body = {"model": target.model, "input": "a"}
    reply = call(target, "POST", EMBEDDINGS, body, {"x-request-id": name})
    assert ok(reply)["id"] == f"embd-{name}"


def check_refused_embeddings(target: Target) -> None:
    """Inputs that are none, of ids that the model has not, too long; fields of the wrong kind."""
    length = context_length(target)
    head = "This model's maximum context length is {length} tokens. However, your prompt contains"
    empty = "The decoder prompt cannot be empty"
    rows = (
        plain("input", "", empty),
        plain("input", ["a", ""], empty),
        plain("input", [[]], empty),
        plain("input", [], "You must pass at least one prompt"),
        *(plain("input", [far], f"Token id {far} is out of vocabulary") for far in (-1, 10**9)),
        Refusal({"input": [5] * (length + 9)}, f"{head} {length + 9} input tokens, …", "input_tokens"),
        plain("truncate_prompt_tokens", 0, empty),
        plain(
            "truncate_prompt_tokens",
            length + 1,
            "truncate_prompt_tokens value is greater than max_model_len. "
            "Please request a smaller truncation size.",
        ),
        value("cache_salt", "", "Parameter 'cache_salt' must be a non-empty string if provided."),
        value("normalize", True, "Parameter `normalize` was removed; use `use_activation` instead."),
        _typed("input", 5, "list_type"),
        _typed("encoding_format", "x", "literal_error"),
        _typed("dimensions", "x", "int_parsing"),
        _typed("user", 5, "string_type"),
    )
    checked(target, EMBEDDINGS, rows)
    body = {"model": target.model, "messages": []}
    error = refused(call(target, "POST", EMBEDDINGS, body), 400)
    assert error["message"].startswith("Cannot apply chat template to an empty conversation."), error
    for absent in ({}, {"input": None}):
        error = refused(call(target, "POST", EMBEDDINGS, {"model": target.model, **absent}), 400)
        assert (error["type"], error["param"]) == (TYPE, "body.input"), error


def _typed(name: str, given: object, kind: str) -> Refusal:
    """One error for each shape that a request may have, the first of which is about the field."""
    text = f"… validation errors:\n  {{'type': '{kind}', 'loc': 'body.{name}', …"
    return Refusal({name: given}, text, f"body.{name}", TYPE)


def _embedded(target: Target, given: object, **fields: object) -> Json:
    return ok(call(target, "POST", EMBEDDINGS, {"model": target.model, "input": given, **fields}))


def _near(one: Vector, other: Vector) -> bool:
    """Equal but for what the order of additions in a batch changes."""
    return len(one) == len(other) and all(abs(a - b) < 1e-3 for a, b in zip(one, other, strict=True))
