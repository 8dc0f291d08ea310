"""The OpenAI API through the router, on real vLLM, with the official client."""

import json
import socket

import httpx
import openai
import pytest

from tests.e2e.stack import MODEL, Stack, prose, wait_until

PERSIAN = "«انبار» در فارسی یعنی جای نگهداری؛ هر چه را که لازم نیست نگه می‌دارد. 🌾"
HINDI = "अंबार का अर्थ है ढेर, और क्षेत्र के किसान अनाज को गोदाम में रखते हैं। 🌾"


def test_chat_completion_with_the_official_client(stack: Stack) -> None:
    """A chat answered in one piece carries text, a finish reason and usage that adds up."""
    answer = stack.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Name a colour."}], max_tokens=5, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"length", "stop"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_equals_the_whole_answer(stack: Stack) -> None:
    """Greedy: the pieces of a stream, put together, are the text of the answer in one piece."""
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from one to five."}],
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = stack.openai.chat.completions.create(**request)
    stream = stack.openai.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    streamed, counted = chunks[-1].usage, whole.usage
    assert streamed is not None
    assert counted is not None
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (
        counted.prompt_tokens,
        counted.completion_tokens,
    )


def test_streamed_completion_equals_the_whole_answer(stack: Stack) -> None:
    """The same for /v1/completions."""
    request = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = stack.openai.completions.create(**request)
    pieces = [chunk.choices[0].text for chunk in stack.openai.completions.create(**request, stream=True)]
    assert len(pieces) > 1
    assert "".join(pieces) == whole.choices[0].text


@pytest.mark.parametrize("text", [PERSIAN, HINDI], ids=["persian", "hindi"])
def test_utf8_split_across_tokens_arrives_whole(stack: Stack, text: str) -> None:
    """`echo` returns the prompt token by token: a letter that spans two tokens must not be torn or lost."""
    stream = stack.openai.completions.create(
        model=MODEL, prompt=text, max_tokens=1, temperature=0, echo=True, stream=True
    )
    echoed = "".join(chunk.choices[0].text for chunk in stream)
    assert echoed.startswith(text)
    answer = stack.chat([{"role": "user", "content": f"Repeat: {text}"}], max_tokens=16)
    assert "\ufffd" not in answer.text[:-1]


def test_models_health_ready_and_metrics(stack: Stack) -> None:
    """The endpoints that clients, load balancers and Prometheus ask."""
    assert MODEL in [model.id for model in stack.openai.models.list()]
    assert stack.http.get("/health").status_code == 200
    assert stack.http.get("/ready").status_code == 200
    before = stack.metric("anbar_router_requests_total", status="200")
    stack.complete("Once")
    wait_until(
        lambda: stack.metric("anbar_router_requests_total", status="200") >= before + 1, 60, "request counted"
    )


def test_request_id_is_kept_and_one_is_made(stack: Stack) -> None:
    """`x-request-id` comes back as sent, under both names; without one the router makes one."""
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
    response = stack.http.post("/v1/completions", json=body, headers={"x-request-id": "order-66"})
    assert response.headers["x-request-id"] == "order-66"
    assert response.headers["x-anbar-request-id"] == "order-66"
    made = {stack.http.post("/v1/completions", json=body).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2


@pytest.mark.parametrize("after_first_byte", [False, True], ids=["before first byte", "mid-stream"])
def test_disconnect_cancels_in_the_engine(stack: Stack, after_first_byte: bool) -> None:
    """A client that goes away frees its engine at once: vLLM runs nothing more, long before the 2,000 tokens
    could be there, and counts no answer."""
    engines = stack.engines().values()

    def answered() -> float:
        return sum(e.metric("vllm:request_success_total") for e in engines)

    def running() -> float:
        return sum(e.metric("vllm:num_requests_running") for e in engines)

    before = answered()
    prompt = prose(1 if after_first_byte else 2, 20 if after_first_byte else 1500)
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": 2000,
            "stream": True,
            "ignore_eos": True,
            "min_tokens": 2000,
        }
    ).encode()
    address = httpx.URL(stack.url)
    with socket.create_connection((address.host, address.port or 80), timeout=30) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        if after_first_byte:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        wait_until(lambda: running() > 0, 60, "the engine runs the request")
    wait_until(lambda: running() == 0, 60, "the engine stops")
    assert answered() == before
    wait_until(
        lambda: stack.metric("anbar_router_in_flight_requests") == 0,
        60,
        "the router counts nothing in flight",
    )


WRONG = {
    "malformed JSON": (b'{"model": ', 400),
    "not an object": (b"[1, 2]", 400),
    "wrong type": (json.dumps({"model": MODEL, "prompt": "x", "max_tokens": "many"}).encode(), 400),
    "prompt of the wrong type": (json.dumps({"model": MODEL, "prompt": {"a": 1}}).encode(), 400),
    "unknown model": (json.dumps({"model": "gpt-9", "prompt": "x"}).encode(), 404),
    "too long for the context": (json.dumps({"model": MODEL, "prompt": "a b " * 9000}).encode(), 400),
    "50 MB body": (b'{"model": "' + b"x" * 50_000_000 + b'"}', 413),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_reaches_no_engine(stack: Stack, name: str) -> None:
    """Wrong input gets a 4xx in OpenAI's error shape, without a stack trace, and no engine hears of it."""
    content, status = WRONG[name]
    engines = stack.engines().values()

    def seen() -> float:
        return sum(e.metric("http_requests_total", handler="/v1/completions") for e in engines)

    before = seen()
    try:
        response = stack.http.post(
            "/v1/completions", content=content, headers={"content-type": "application/json"}
        )
    except httpx.WriteError:
        pytest.fail("the connection was cut before the answer could be read")
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    assert seen() == before


def test_empty_messages_are_refused(stack: Stack) -> None:
    """The official client sees its own exception class."""
    with pytest.raises(openai.BadRequestError) as caught:
        stack.openai.chat.completions.create(model=MODEL, messages=[])
    assert caught.value.param == "messages"
