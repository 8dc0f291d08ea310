"""What an engine must be like for Anbar to work with it: one suite for the fake and for real vLLM.

Each `check_*` takes a `Target`, needs nothing but the standard library and pyzmq, and raises AssertionError
that says what is different. Prompts carry a fresh nonce, so the checks may run against an engine in use. They
are synchronous: run them beside the engine, not on its event loop. `ALL` lists them.

The engine needs `--enable-prompt-tokens-details`; the checks of events are skipped without `events`/`replay`.
"""

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import zmq

Json = dict[str, Any]

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


@dataclass(frozen=True, slots=True)
class Target:
    """The engine under test. `events` and `replay` are its ZMQ addresses, "" when it publishes none."""

    base_url: str
    model: str
    events: str = ""
    replay: str = ""
    api_key: str = ""
    timeout_s: float = 60.0


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
def _connection(target: Target) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(target.base_url).netloc, timeout=target.timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def _call(
    target: Target, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Reply:
    sent = {"content-type": "application/json", **(headers or {})}
    if target.api_key:
        sent["authorization"] = f"Bearer {target.api_key}"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with _connection(target) as connection:
        connection.request(method, path, data, sent)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def _complete(target: Target, prompt: object, **fields: object) -> Reply:
    body = {"model": target.model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    return _call(target, "POST", "/v1/completions", body)


def _chat(target: Target, text: str, **fields: object) -> Reply:
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]
    body = {"model": target.model, "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    return _call(target, "POST", "/v1/chat/completions", body)


def _nonce() -> str:
    return uuid.uuid4().hex


def _long_prompt(words: int = 120) -> str:
    return f"{_nonce()} " + "the water in the store and the grain of the long winter " * (words // 12)


def _ok(reply: Reply) -> Json:
    assert reply.status == 200, (reply.status, reply.body[:500])
    return reply.json


def _refused(reply: Reply, status: int) -> Json:
    """The error of a refusal in vLLM's shape: message, type, param, code (the status as a number)."""
    assert reply.status == status, (reply.status, reply.body[:500])
    error = cast(Json, reply.json["error"])
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert error["code"] == status, error
    assert "Traceback" not in error["message"], error
    return error


def _samples(page: str, name: str) -> dict[str, float]:
    """Labels (as text) and values of one metric."""
    lines = (line for line in page.splitlines() if line.startswith((name + "{", name + " ")))
    return {line[len(name) :].rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def _metrics(target: Target) -> str:
    reply = _call(target, "GET", "/metrics")
    assert reply.status == 200
    return reply.body.decode()


def block_size(target: Target) -> int:
    """Tokens per block, as the probe reads it."""
    (labels,) = _samples(_metrics(target), "vllm:cache_config_info")
    return int(labels.partition('block_size="')[2].partition('"')[0])


def check_health(target: Target) -> None:
    """/health is 200 and empty, /version names a version, unknown paths are 404 in the error shape."""
    health = _call(target, "GET", "/health")
    assert (health.status, health.body) == (200, b"")
    assert isinstance(_ok(_call(target, "GET", "/version"))["version"], str)
    assert _refused(_call(target, "GET", "/v1/nothing"), 404)["type"] == "Not Found"
    assert _refused(_call(target, "GET", "/v1/completions"), 405)["type"] == "Method Not Allowed"


def check_models(target: Target) -> None:
    """/v1/models lists the served name with its root directory and context length."""
    page = _ok(_call(target, "GET", "/v1/models"))
    assert page["object"] == "list"
    card = next(card for card in page["data"] if card["id"] == target.model)
    assert card["object"] == "model"
    assert isinstance(card["root"], str)
    assert isinstance(card["max_model_len"], int)
    assert card["parent"] is None


def check_metrics(target: Target) -> None:
    """The metrics that the probe and the tests read exist, with vLLM's types and labels."""
    page = _metrics(target)
    for name, kind in _METRICS.items():
        family = name.removesuffix("_total") if f"# TYPE {name} " not in page else name
        assert f"# TYPE {family} {kind}" in page, f"{name} is not a {kind}"
        assert _samples(page, name), f"{name} has no sample"
    sources = "".join(_samples(page, "vllm:prompt_tokens_by_source_total"))
    assert all(
        f'source="{s}"' in sources for s in ("local_compute", "local_cache_hit", "external_kv_transfer")
    )
    assert block_size(target) >= 1


def check_completion(target: Target) -> None:
    """A whole completion: ids, choice, usage; the request id is the client's."""
    name = _nonce()
    body = {"model": target.model, "prompt": f"{name} once", "max_tokens": 4, "ignore_eos": True}
    reply = _call(target, "POST", "/v1/completions", body, {"x-request-id": name})
    page = _ok(reply)
    assert reply.headers["content-type"] == "application/json"
    assert page["id"] == f"cmpl-{name}"
    assert page["object"] == "text_completion"
    assert page["model"] == target.model
    assert isinstance(page["created"], int)
    (choice,) = page["choices"]
    assert choice["index"] == 0
    assert isinstance(choice["text"], str)
    assert choice["finish_reason"] == "length"
    assert {"logprobs", "stop_reason", "prompt_logprobs"} <= set(choice)
    _check_usage(page["usage"], completion=4)


def check_chat(target: Target) -> None:
    """A whole chat answer: message, finish reason, usage."""
    page = _ok(_chat(target, f"{_nonce()} hello", max_tokens=4, ignore_eos=True))
    assert page["id"].startswith("chatcmpl-")
    assert page["object"] == "chat.completion"
    (choice,) = page["choices"]
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] == "length"
    _check_usage(page["usage"], completion=4)


def _check_usage(usage: Json, completion: int) -> None:
    assert usage["completion_tokens"] == completion, usage
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + completion
    assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int), usage


def check_streams(target: Target) -> None:
    """Streams: SSE events of JSON, [DONE] last, one finish reason, the same text as the whole answer."""
    prompt = f"{_nonce()} آب و अंबार"
    for stream, text_of in ((_complete, _completion_text), (_chat, _chat_text)):
        whole = _ok(stream(target, prompt, max_tokens=12))
        reply = stream(target, prompt, max_tokens=12, stream=True)
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        *events, done = reply.events
        assert done == b"[DONE]"
        chunks = [json.loads(event) for event in events]
        assert all("usage" not in chunk or chunk["usage"] is None for chunk in chunks)
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == text_of(whole["choices"][0])
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons[-1] in ("stop", "length")
        assert not any(reasons[:-1])


def _completion_text(choice: Json) -> str:
    return cast(str, choice["text"])


def _chat_text(choice: Json) -> str:
    part = choice.get("delta") or choice.get("message") or {}
    return cast(str, part.get("content") or "")


def check_chat_stream_begins_with_role(target: Target) -> None:
    """The first chunk of a chat stream carries the role and no text."""
    first = json.loads(_chat(target, _nonce(), stream=True).events[0])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def check_stream_usage(target: Target) -> None:
    """`include_usage` adds one chunk without choices before [DONE], equal to the whole answer's usage."""
    prompt = _long_prompt()
    _ok(_complete(target, prompt))
    whole = _ok(_complete(target, prompt))["usage"]
    reply = _complete(target, prompt, stream=True, stream_options={"include_usage": True})
    last = json.loads(reply.events[-2])
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole[name], name
    cached = whole["prompt_tokens_details"]["cached_tokens"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def check_stop(target: Target) -> None:
    """A stop string ends the answer before it, with reason `stop` and the string as `stop_reason`."""
    prompt = f"{_nonce()} tell"
    text = _ok(_complete(target, prompt, max_tokens=16, ignore_eos=True))["choices"][0]["text"]
    stop = next((part for part in text.split() if len(part) > 1 and "�" not in part), None)
    if stop is None:
        return
    choice = _ok(_complete(target, prompt, max_tokens=16, ignore_eos=True, stop=[stop]))["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def check_n_and_batches(target: Target) -> None:
    """`n` and several prompts give one choice each, indexed in order; usage counts all."""
    page = _ok(_complete(target, [f"{_nonce()} a", f"{_nonce()} b"], n=2, max_tokens=2, ignore_eos=True))
    assert sorted(choice["index"] for choice in page["choices"]) == [0, 1, 2, 3]
    assert page["usage"]["completion_tokens"] == 8


def check_cached_tokens(target: Target) -> None:
    """The second time, all whole blocks of a prompt but its last token's come from the cache."""
    size = block_size(target)
    prompt = _long_prompt(max(120, 3 * size))
    assert _cached(_complete(target, prompt)) < size
    reply = _complete(target, prompt)
    num_tokens = _ok(reply)["usage"]["prompt_tokens"]
    assert num_tokens > 2 * size, "the prompt is too short to show anything"
    assert _cached(reply) == (num_tokens - 1) // size * size


def check_exact_blocks(target: Target) -> None:
    """A prompt of exactly n blocks has n-1 of them cached the second time: its last token is recomputed."""
    size = block_size(target)
    ids = _tokens(target, _long_prompt(max(120, 4 * size)))[: 2 * size]
    _ok(_complete(target, ids, max_tokens=1))
    assert _cached(_complete(target, ids, max_tokens=1)) == size


def check_salts(target: Target) -> None:
    """Another salt, or none, never sees a salted prompt's blocks; the same salt does."""
    prompt = _long_prompt(max(120, 3 * block_size(target)))
    _ok(_complete(target, prompt, cache_salt="one"))
    assert _cached(_complete(target, prompt, cache_salt="two")) == 0
    assert _cached(_complete(target, prompt)) == 0
    assert _cached(_complete(target, prompt, cache_salt="one")) > 0


def _cached(reply: Reply) -> int:
    return cast(int, _ok(reply)["usage"]["prompt_tokens_details"]["cached_tokens"])


def check_token_accounting(target: Target) -> None:
    """The counters of prompt tokens by source move by what usage says."""
    name = "vllm:prompt_tokens_by_source_total"
    prompt = _long_prompt(max(120, 3 * block_size(target)))
    _ok(_complete(target, prompt))
    before = _samples(_metrics(target), name)
    usage = _ok(_complete(target, prompt))["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]

    def moved(source: str) -> float:
        after = _samples(_metrics(target), name)
        return sum(after[key] - before.get(key, 0.0) for key in after if f'source="{source}"' in key)

    _eventually(lambda: moved("local_compute") >= usage["prompt_tokens"] - cached, target)
    assert moved("local_cache_hit") + moved("external_kv_transfer") >= cached


def check_tokenize(target: Target) -> None:
    """/tokenize gives the ids that a prompt has, for text and for chats: usage counts the same."""
    text = f"{_nonce()} سلام नमस्ते"
    assert len(_tokens(target, text)) == _ok(_complete(target, text))["usage"]["prompt_tokens"]
    messages = [{"role": "user", "content": text}]
    body = {"model": target.model, "messages": messages}
    page = _ok(_call(target, "POST", "/tokenize", body))
    assert page["count"] == len(page["tokens"])
    assert isinstance(page["max_model_len"], int)
    usage = _ok(_call(target, "POST", "/v1/chat/completions", {**body, "max_tokens": 1}))["usage"]
    assert page["count"] == usage["prompt_tokens"]


def _tokens(target: Target, text: str) -> list[int]:
    page = _ok(_call(target, "POST", "/tokenize", {"model": target.model, "prompt": text}))
    return cast(list[int], page["tokens"])


def check_refusals(target: Target) -> None:
    """What is wrong with a request is a 4xx in one shape, whatever it is."""
    path, good = "/v1/completions", {"model": target.model, "prompt": "a", "max_tokens": 1}
    missing = _refused(_call(target, "POST", path, {**good, "model": "no-such-model"}), 404)
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
        (path, {**good, "prompt": [1] * (_context(target) + 1)}),
        (path, {**good, "prompt": [1] * _context(target)}),
        ("/v1/chat/completions", {"model": target.model, "messages": "hello"}),
        ("/v1/chat/completions", {"model": target.model}),
        ("/v1/chat/completions", {"model": target.model, "messages": [{"content": "no role"}]}),
    )
    for where, body in wrong:
        _refused(_call(target, "POST", where, body), 400)


def _context(target: Target) -> int:
    cards = _ok(_call(target, "GET", "/v1/models"))["data"]
    return cast(int, next(card for card in cards if card["id"] == target.model)["max_model_len"])


def check_disconnect_aborts(target: Target) -> None:
    """A client that goes away in the middle of a stream frees its place in the engine."""
    body = {"model": target.model, "prompt": _nonce(), "max_tokens": 400, "ignore_eos": True, "stream": True}
    headers = {"content-type": "application/json"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    with _connection(target) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
        assert connection.getresponse().read(16).startswith(b"data: ")
    _eventually(lambda: not any(_samples(_metrics(target), "vllm:num_requests_running").values()), target)


def _eventually(holds: Callable[[], bool], target: Target) -> None:
    end_s = time.monotonic() + target.timeout_s
    while not holds():
        assert time.monotonic() < end_s, "still not so at the deadline"
        time.sleep(0.05)


def check_event_sources(target: Target) -> None:
    """/kv_event_sources names the addresses of rank 0 as they were configured."""
    if not target.events:
        return
    source = _ok(_call(target, "GET", "/kv_event_sources"))["0"]
    assert source["endpoint"] == target.events
    assert source["replay_endpoint"] == (target.replay or None)
    assert source["publisher"] == "zmq"


@contextmanager
def _socket(kind: int, address: str) -> Iterator["zmq.Socket[bytes]"]:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


def _stored(socket: "zmq.Socket[bytes]", wanted: Sequence[int]) -> list[Json]:
    """Device events, until those that hold the tokens `wanted`; checks frames and sequence on the way."""
    found: list[Json] = []
    last = -1
    while True:
        topic, seq_bytes, payload = socket.recv_multipart()
        seq = int.from_bytes(seq_bytes, "big")
        assert topic == b""
        assert last in (-1, seq - 1), f"batch {seq} follows {last}"
        last = seq
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        found += [e for e in events if e["type"] == "BlockStored" and e["medium"] == "GPU"]
        if any(list(event["token_ids"][: len(wanted)]) == list(wanted) for event in found):
            return found


def check_events(target: Target) -> None:
    """Device events: maps, full blocks with their tokens, chained by parent, the salt on the first block."""
    if not target.events:
        return
    size = block_size(target)
    ids = _tokens(target, _long_prompt(max(120, 4 * size)))
    with _socket(zmq.SUB, target.events) as socket:
        time.sleep(0.3)  # a subscription takes a moment to reach the publisher
        _ok(_complete(target, ids, cache_salt="salt", max_tokens=1))
        found = _stored(socket, ids[:size])
    first = next(e for e in found if list(e["token_ids"][:size]) == ids[:size])
    assert first["block_size"] == size
    assert first["parent_block_hash"] is None
    assert len(first["block_hashes"]) * size == len(first["token_ids"])
    assert first["token_ids"] == ids[: len(first["token_ids"])]
    assert first["group_idx"] == 0
    assert first["lora_name"] is None
    assert [list(keys) if keys else None for keys in first["extra_keys"]] == [
        ["salt"],
        *[None] * (len(first["block_hashes"]) - 1),
    ]
    assert all(isinstance(h, bytes | int) for h in first["block_hashes"])


def check_replay(target: Target) -> None:
    """Replay gives every batch from the asked sequence on, in order, with its topic, and ends with -1."""
    if not target.replay:
        return
    _ok(_complete(target, _long_prompt(max(120, 2 * block_size(target)))))
    time.sleep(0.3)  # the engine publishes after it answered
    with _socket(zmq.DEALER, target.replay) as socket:
        sequences = _replay(socket, 0)
        assert sequences, "nothing to replay"
        assert sequences == list(range(sequences[0], sequences[-1] + 1))
        assert _replay(socket, sequences[-1])[:1] == [sequences[-1]]


def _replay(socket: "zmq.Socket[bytes]", start: int) -> list[int]:
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    sequences: list[int] = []
    while True:
        empty, _, seq, payload = socket.recv_multipart()
        assert empty == b""
        number = int.from_bytes(seq, "big", signed=True)
        if number == -1:
            assert payload == b""
            return sequences
        sequences.append(number)


ALL: tuple[Callable[[Target], None], ...] = (
    check_health,
    check_models,
    check_metrics,
    check_completion,
    check_chat,
    check_streams,
    check_chat_stream_begins_with_role,
    check_stream_usage,
    check_stop,
    check_n_and_batches,
    check_cached_tokens,
    check_exact_blocks,
    check_salts,
    check_token_accounting,
    check_tokenize,
    check_refusals,
    check_disconnect_aborts,
    check_event_sources,
    check_events,
    check_replay,
)
"""Every check, cheap ones first."""
