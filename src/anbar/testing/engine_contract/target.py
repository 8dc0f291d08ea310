"""The engine under test, and how the checks speak to it."""

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

Json = dict[str, Any]


@dataclass(slots=True)
class Traffic:
    """What the checks asked so far. One that asked nothing had nothing to check."""

    num_connections: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """The engine under test. `events` and `replay` are its ZMQ addresses, "" when it publishes none."""

    base_url: str
    model: str
    events: str = ""
    replay: str = ""
    api_key: str = ""
    timeout_s: float = 60.0
    offloads: bool = False
    """Blocks come back from host RAM or a store as well."""
    dev_mode: bool = False
    """It has the development endpoints (`VLLM_SERVER_DEV_MODE=1`)."""
    request_ids: bool = False
    """It repeats `x-request-id` in its answers (`--enable-request-id-headers`)."""
    lora: str = ""
    """An adapter that it serves; "": none."""
    alone: bool = False
    """Nobody else uses it: checks may count exactly, fill its cache and drop it."""
    traffic: Traffic = field(default_factory=Traffic, compare=False, repr=False)


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


@contextmanager
def connected(target: Target) -> Iterator[http.client.HTTPConnection]:
    """A connection of its own."""
    target.traffic.num_connections += 1
    connection = http.client.HTTPConnection(urlsplit(target.base_url).netloc, timeout=target.timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def call(
    target: Target, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One request; `body` is bytes or goes as JSON."""
    sent = {"content-type": "application/json", **(headers or {})}
    if target.api_key:
        sent["authorization"] = f"Bearer {target.api_key}"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with connected(target) as connection:
        connection.request(method, path, data, sent)
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


def samples(page: str, name: str) -> dict[str, float]:
    """Labels (as text) and values of one metric."""
    lines = (line for line in page.splitlines() if line.startswith((name + "{", name + " ")))
    return {line[len(name) :].rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def metrics(target: Target) -> str:
    """The page of GET /metrics."""
    reply = call(target, "GET", "/metrics")
    assert reply.status == 200
    return reply.body.decode()


def block_size(target: Target) -> int:
    """Tokens per block, as the probe reads it."""
    (labels,) = samples(metrics(target), "vllm:cache_config_info")
    return int(labels.partition('block_size="')[2].partition('"')[0])


def eventually(holds: Callable[[], bool], target: Target, what: Callable[[], str] = str) -> None:
    """Wait until `holds()`; `what()` says in the end how it is instead."""
    end_s = time.monotonic() + target.timeout_s
    while not holds():
        assert time.monotonic() < end_s, f"still not so at the deadline {what()}"
        time.sleep(0.05)


def tokens(target: Target, text: str) -> list[int]:
    """The ids of a text, from POST /tokenize."""
    page = ok(call(target, "POST", "/tokenize", {"model": target.model, "prompt": text}))
    return cast(list[int], page["tokens"])


def capacity(target: Target) -> int:
    """Blocks that can hold something: vLLM's first block never does."""
    (labels,) = samples(metrics(target), "vllm:cache_config_info")
    return int(labels.partition('num_gpu_blocks="')[2].partition('"')[0]) - 1


def context_lengths(target: Target) -> dict[str, int]:
    """Longest prompt plus answer of each served name, from /v1/models."""
    cards = ok(call(target, "GET", "/v1/models"))["data"]
    return {card["id"]: cast(int, card["max_model_len"]) for card in cards}


def context_length(target: Target) -> int:
    """Longest prompt plus answer."""
    return context_lengths(target)[target.model]
