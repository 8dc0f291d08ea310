"""What the router adds to real vLLM: usage that nobody asked for, and why a request went where it went."""

import json
from typing import Any

from tests.e2e.stack import MODEL, Stack, prose


def events(stack: Stack, path: str, body: dict[str, Any]) -> tuple[str, list[Any]]:
    """The request's id, and the events of a streamed answer as JSON; fails unless it ends with [DONE]."""
    with stack.http.stream("POST", path, json={"model": MODEL, "stream": True, **body}) as response:
        assert response.status_code == 200, response.read()
        lines = [line[6:] for line in response.iter_lines() if line]
        assert lines.pop() == "[DONE]"
        return response.headers["x-request-id"], [json.loads(line) for line in lines]


def _said(events: list[Any]) -> tuple[str, list[str], set[frozenset[str]]]:
    """Text, finish reasons and keys: how many tokens come in one event depends on the machine."""
    choices = [event["choices"][0] for event in events]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    keys = {frozenset((*event, *choice)) for event, choice in zip(events, choices, strict=True)}
    return "".join(choice["text"] for choice in choices), reasons, keys


def explained(stack: Stack, request_id: str) -> dict[str, Any]:
    (request,) = stack.http.get(f"/admin/explain/{request_id}").json()["requests"]
    return dict(request)


def test_a_stream_without_usage_is_the_engines(stack: Stack) -> None:
    """A client that does not ask for usage sees the events that an engine alone sends to such a client, and
    the router knows the usage all the same."""
    body = {"prompt": "Nobody asked for usage", "max_tokens": 6, "temperature": 0}
    request_id, through = events(stack, "/v1/completions", body)
    engine = next(iter(stack.engines().values()))
    answer = stack.http.post(f"{engine.url}/v1/completions", json={"model": MODEL, "stream": True, **body})
    lines = [line[6:] for line in answer.text.splitlines() if line]
    alone = [json.loads(line) for line in lines[:-1]]
    own = ("id", "created", "system_fingerprint")
    for event in (*through, *alone):
        for name in own:
            event.pop(name, None)
    assert _said(through) == _said(alone)
    assert all(event["choices"] and event.get("usage") is None for event in through)
    assert explained(stack, request_id)["outcome"]["output_tokens"] == 6


def test_a_choice_is_explained(stack: Stack) -> None:
    """Both engines with what each was predicted to take, the choice first, and how it ended: the engine
    reported the cached tokens that were predicted."""
    prompt = prose(240, 700)
    first = stack.complete(prompt, max_tokens=1)
    stack.settle()
    second = stack.complete(prompt, max_tokens=1)
    request = explained(stack, second.headers["x-request-id"])
    assert [engine["place"] for engine in request["engines"]] == [1, 2]
    chosen, other = request["engines"]
    assert chosen["engine"] == request["chosen"] == first.engine
    assert sum(chosen["matched"].values()) == second.cached > 0
    assert chosen["matched"]["device"] > 0
    assert other["matched"]["device"] == 0
    assert {engine["mode"] for engine in request["engines"]} == {"precise"}
    outcome = request["outcome"]
    assert (outcome["outcome"], outcome["cached_tokens"]) == ("ok", second.cached)
    assert outcome["predicted_cached_tokens"] == second.cached


def test_the_tokenizer_was_compared(stack: Stack) -> None:
    """The start-up probe found the router's tokens equal to each engine's, so nothing is degraded."""
    for engine in stack.admin():
        assert engine["degraded"] == ""
        assert "differ" not in engine["tokenizer"]
