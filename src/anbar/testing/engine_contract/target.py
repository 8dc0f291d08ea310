"""The engine under test, and how the checks speak to it."""

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

Json = dict[str, Any]


class NotApplicable(Exception):
    """The check is about something that this engine has not; the text says what."""


@dataclass(frozen=True, slots=True)
class Target:
    """The engine under test. `events` and `replay` are its ZMQ addresses, "" when it publishes none."""

    base_url: str
    model: str
    events: str = ""
    replay: str = ""
    api_key: str = ""
    timeout_s: float = 120.0
    """Longest wait for what must come."""
    embeds: bool = False
    """It embeds and generates nothing (`--runner pooling`): `EMBEDDING` are its checks."""
    offloads: bool = False
    """Blocks come back from host RAM or a store as well."""
    dev_mode: bool = False
    """It has the development endpoints (`VLLM_SERVER_DEV_MODE=1`)."""
    request_ids: bool = False
    """It repeats `x-request-id` in its answers (`--enable-request-id-headers`)."""
    timed: bool = False
    """Its answers tell its times (`--enable-per-request-metrics`)."""
    auto_tools: bool = False
    """It finds calls of tools in answers (`--enable-auto-tool-choice --tool-call-parser ...`)."""
    lora: str = ""
    """An adapter that it serves; "": none."""
    runtime_lora: str = ""
    """The directory of an adapter that it can load over HTTP (`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`); "": it
    loads none."""
    alone: bool = False
    """Nobody else uses it: checks may count exactly, fill its cache and drop it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return cast(Json, json.loads(self.body))

    @property
    def events(self) -> list[bytes]:
        """The data of an SSE body, event by event."""
        parts = self.body.split(b"\n\n")
        assert parts[-1] == b"", f"the stream ends with {parts[-1]!r}"
        assert all(part.startswith(b"data: ") for part in parts[:-1]), parts[:3]
        return [part.removeprefix(b"data: ") for part in parts[:-1]]


def needs(has: object, what: str) -> None:
    """NotApplicable unless the engine has what the check is about."""
    if not has:
        raise NotApplicable(what)


def needs_alone(target: Target) -> None:
    """For checks that count exactly, or that do something to everybody's requests."""
    needs(target.alone, "others may use the engine")


def needs_events(target: Target) -> None:
    needs(target.events, "it publishes no events")


@contextmanager
def sent(
    target: Target, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPConnection]:
    """A request on a connection of its own, which is closed when the block ends; `body` is bytes or goes as
    JSON."""
    given = {"content-type": "application/json", **(headers or {})}
    if target.api_key:
        given["authorization"] = f"Bearer {target.api_key}"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection(urlsplit(target.base_url).netloc, timeout=target.timeout_s)
    try:
        connection.request(method, path, data, given)
        yield connection
    finally:
        connection.close()


def call(
    target: Target, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One request and its answer."""
    with sent(target, method, path, body, headers) as connection:
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def complete(target: Target, prompt: object, **fields: object) -> Reply:
    """POST /v1/completions, greedy."""
    body = {"model": target.model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    return call(target, "POST", "/v1/completions", body)


def chat(target: Target, text: str, **fields: object) -> Reply:
    """POST /v1/chat/completions, greedy."""
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]
    body = {"model": target.model, "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    return call(target, "POST", "/v1/chat/completions", body)


def chunks(reply: Reply) -> list[Json]:
    """The chunks of a stream that ended well, without its [DONE]."""
    assert reply.status == 200, (reply.status, reply.body[:500])
    *events, done = reply.events
    assert done == b"[DONE]", done
    return [json.loads(event) for event in events]


def nonce() -> str:
    """Text that no engine has in its cache."""
    return uuid.uuid4().hex


def long_prompt(words: int = 120) -> str:
    """A fresh prompt of about `words` words."""
    return f"{nonce()} " + "the water in the store and the grain of the long winter " * (words // 12)


def ok(reply: Reply) -> Json:
    """The JSON of a 200."""
    assert reply.status == 200, (reply.status, reply.body[:500])
    return reply.json


def refused(reply: Reply, status: int) -> Json:
    """The error of a refusal in vLLM's shape: message, type, param, code (the status as a number)."""
    assert reply.status == status, (reply.status, reply.body[:500])
    error = cast(Json, reply.json["error"])
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert error["code"] == status, error
    assert "Traceback" not in error["message"], error
    return error


def eventually(holds: Callable[[], bool], target: Target, what: Callable[[], object] = str) -> None:
    """Wait until `holds()`; `what()` says in the end how it is instead."""
    end_s = time.monotonic() + target.timeout_s
    while not holds():
        assert time.monotonic() < end_s, f"still not so at the deadline {what()}"
        time.sleep(0.05)


def tokens(target: Target, text: str) -> list[int]:
    """The ids of a text, from POST /tokenize."""
    page = ok(call(target, "POST", "/tokenize", {"model": target.model, "prompt": text}))
    return cast(list[int], page["tokens"])


def some_tokens(target: Target, count: int) -> list[int]:
    """That many ids that no prompt began with before."""
    ids = tokens(target, long_prompt(12 + 2 * count))
    assert len(ids) >= count, "the text is too short"
    return ids[:count]


def context_lengths(target: Target) -> dict[str, int]:
    """Longest prompt plus answer of each served name, from /v1/models."""
    cards = ok(call(target, "GET", "/v1/models"))["data"]
    return {card["id"]: cast(int, card["max_model_len"]) for card in cards}


def context_length(target: Target) -> int:
    """Longest prompt plus answer."""
    return context_lengths(target)[target.model]
