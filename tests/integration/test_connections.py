"""HTTP as real clients speak it: kept and pipelined connections, HTTP/2 prefaces, slow and odd clients."""

import asyncio
import json

import pytest

from anbar.apps.emulator import Fault, FaultKind, Script
from tests.integration.harness import Raw
from tests.integration.stack import COMPLETIONS, Stack, completion
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
STREAM = ((b"content-type", b"text/event-stream"),)


async def test_keep_alive(stack: Stack) -> None:
    """One connection serves whole answers, streams and small pages one after the other."""
    async with Raw.open(stack.port) as raw:
        for number in range(20):
            raw.post(COMPLETIONS, completion(f"{number}", stream=number % 2 == 0))
            assert (await raw.answer()).status == 200
            raw.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await raw.answer()).status == 200


async def test_pipelining(stack: Stack) -> None:
    """Requests sent at once on one connection are answered in order."""
    async with Raw.open(stack.port) as raw:
        for number in range(8):
            raw.post(COMPLETIONS, completion(f"{number}"), {"x-request-id": f"p{number}"})
        for number in range(8):
            answer = await raw.answer()
            assert answer.status == 200
            assert answer.headers["x-request-id"] == f"p{number}"


async def test_connection_close(stack: Stack) -> None:
    """`Connection: close` and HTTP/1.0 clients get their answer and a closed connection."""
    body = json.dumps(completion("a")).encode()
    for version, extra in (("1.1", "connection: close\r\n"), ("1.0", "")):
        async with Raw.open(stack.port) as raw:
            head = f"POST {COMPLETIONS} HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
            raw.write(f"{head}{extra}content-length: {len(body)}\r\n\r\n".encode() + body)
            data = await raw.read_all()
        assert data.split(b" ", 2)[1] == b"200"
        assert b'"choices"' in data


async def test_http_1_0_stream(stack: Stack) -> None:
    """An HTTP/1.0 client, which knows no chunks, gets a stream that ends with the connection."""
    body = json.dumps(completion("a", stream=True)).encode()
    async with Raw.open(stack.port) as raw:
        head = f"POST {COMPLETIONS} HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        data = await raw.read_all()
    top, _, stream = data.partition(b"\r\n\r\n")
    assert b"chunked" not in top.lower()
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_expect_continue(stack: Stack) -> None:
    """A client that asks before it sends its body (curl does) is told to go on."""
    body = json.dumps(completion("a")).encode()
    async with Raw.open(stack.port) as raw:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.write(f"{head}expect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        assert (await asyncio.wait_for(raw.head(), PATIENCE_S))[0] == 100
        raw.write(body)
        assert (await raw.answer()).status == 200


async def test_http2_preface(stack: Stack) -> None:
    """A client that begins with HTTP/2 is told so and cut; others do not notice."""
    async with Raw.open(stack.port) as raw:
        raw.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        data = await raw.read_all()
    assert data == b"" or data.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    assert (await stack.complete("a")).status == 200


async def test_upgrade_offers_are_declined(stack: Stack) -> None:
    """Clients that offer h2c or websockets (curl, Java) are served over HTTP/1.1."""
    headers = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAMAAABkAAQAAP__",
    }
    answer = await stack.post(COMPLETIONS, completion("a"), headers)
    assert answer.status == 200
    assert answer.json["choices"]


async def test_request_byte_by_byte(stack: Stack) -> None:
    """A request that arrives byte by byte is served like any other."""
    body = json.dumps(completion("آب"), ensure_ascii=False).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    async with Raw.open(stack.port) as raw:
        for byte in f"{head}content-length: {len(body)}\r\n\r\n".encode() + body:
            raw.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await raw.answer()).status == 200


async def test_dripping_engine(stack: Stack) -> None:
    """An engine whose head and body come byte by byte, whole and streamed, is carried whole."""
    for streamed in (False, True):
        for engine in stack.engines.values():
            engine.faults.clear()
            engine.arm(Fault(FaultKind.DRIP))
        answer = await stack.post(COMPLETIONS, completion("a", stream=streamed))
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n") or answer.json["choices"]


async def test_slow_client_does_not_delay_others(stack: Stack) -> None:
    """A client that does not read its long stream makes nobody wait: others are answered while it has not
    come to its end."""
    for engine in stack.engines.values():
        engine.script(Script((bytes(2**16),) * 960, headers=STREAM, chunked=True))
    async with Raw.open(stack.port, limit=2**10) as slow:
        slow.post(COMPLETIONS, completion("a", stream=True))
        await slow.head()
        for engine in stack.engines.values():
            engine.faults.clear()  # the script that was not played
        answers = await asyncio.gather(*(stack.complete(str(i)) for i in range(10)))
        assert {answer.status for answer in answers} == {200}
        assert stack.num_open == 1
        await slow.abort()


async def test_idle_connections_are_kept_apart(stack: Stack) -> None:
    """A hundred clients that only connect do not keep others from being served."""
    async with asyncio.timeout(PATIENCE_S):
        waiting = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(100)]
        assert (await stack.complete("a")).status == 200
        for _, writer in waiting:
            writer.close()
            await writer.wait_closed()
