"""The schemas of bodies beside the code that judges them."""

import json
from typing import Any

import pytest

from anbar.adapters.http.openai import ClientKv, Endpoint, parse
from anbar.adapters.http.schemas import RANGES, body_of, body_schemas
from anbar.core.errors import RequestError

MINIMAL: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"model": "m", "messages": [{"role": "user"}]},
    Endpoint.COMPLETIONS: {"model": "m", "prompt": "a"},
}
COMPANY = {"max_tokens": {"echo": True}, "top_logprobs": {"logprobs": True}}
"""What a field needs beside it."""
BOUNDED = [
    (endpoint, name, (field.get("anyOf") or [field])[0])
    for endpoint in Endpoint
    for name, field in body_schemas()[body_of(endpoint)]["properties"].items()
    if {"minimum", "exclusiveMinimum"} & (field.get("anyOf") or [field])[0].keys()
]


def is_taken(endpoint: Endpoint, **fields: object) -> bool:
    try:
        parse(endpoint, json.dumps(MINIMAL[endpoint] | fields).encode(), ClientKv.REFUSE)
    except RequestError:
        return False
    return True


def test_every_range_is_in_the_schemas() -> None:
    """Each named range applies to a field of both bodies that is there, or to one of them."""
    assert set(RANGES) <= {name for _, name, _ in BOUNDED}
    assert len(BOUNDED) > 20


@pytest.mark.parametrize(("endpoint", "name", "field"), BOUNDED, ids=lambda value: str(value)[:20])
def test_ranges_are_those_that_are_judged_by(endpoint: Endpoint, name: str, field: dict[str, Any]) -> None:
    """Values at both bounds are taken, and the next ones beyond are refused."""
    step = 1 if field["type"] == "integer" else 1e-9
    company = COMPANY.get(name, {})

    def taken(value: float) -> bool:
        return is_taken(endpoint, **company, **{name: value})

    if "exclusiveMinimum" in field:
        assert not taken(field["exclusiveMinimum"])
        assert taken(field["exclusiveMinimum"] + step)
    else:
        assert taken(field["minimum"])
        assert not taken(field["minimum"] - step)
    if "maximum" in field:
        assert taken(field["maximum"])
        assert not taken(field["maximum"] + step)


@pytest.mark.parametrize("endpoint", Endpoint)
def test_what_the_schemas_require_is_required(endpoint: Endpoint) -> None:
    """The least body is taken, and not without any of its fields that are required."""
    required = body_schemas()[body_of(endpoint)]["required"]
    assert set(required) <= set(MINIMAL[endpoint])
    assert is_taken(endpoint)
    for name in required:
        body = {key: value for key, value in MINIMAL[endpoint].items() if key != name}
        with pytest.raises(RequestError):
            parse(endpoint, json.dumps(body).encode(), ClientKv.REFUSE)
