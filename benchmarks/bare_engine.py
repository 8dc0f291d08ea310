"""Engines that answer at once and compute nothing, so that what is measured is the router before them.

All engines of the process give the same answers: one token, or so many chunks as a burst or paced. They
publish KV events for every prompt that they had not had before, with the true token ids, and report as cached
what they have had. `POST /bench/work` changes what answers are; `GET /bench/backlog` tells for how many
prompts the events are still to come: tokenizing is done behind the answers, in a thread.
"""

import argparse
import asyncio
import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import uvloop

from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.message import JSON_TYPE, Answer, json_answer, render_headers
from anbar.adapters.http.server import Exchange, HttpServer
from anbar.adapters.vllm.kv_publish import MEDIUM_DEVICE, BlockStored, Publisher, PublisherConfig, event_hash
from anbar.adapters.vllm.tokens import Tokenizer, load_tokenizer

BLOCK = 16
CONTEXT = 131_072
MODEL = "bench"
_GENERATE = (b"/v1/chat/completions", b"/v1/completions")
_SSE = render_headers([(b"content-type", b"text/event-stream; charset=utf-8")])
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1760000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_DONE = b"data: [DONE]\n\n"


class Work(msgspec.Struct):
    """What an answer to a streaming request is: `chunks` events, `gap_s` apart."""

    chunks: int = 1
    gap_s: float = 0.0


@dataclass
class Shared:
    """What the engines of the process have in common."""

    tokenizer: Tokenizer
    model: str
    threads: ThreadPoolExecutor
    work: Work
    num_pending: int = 0


class BareEngine:
    """One engine: a server, a publisher, and which prompts it has had."""

    def __init__(self, port: int, shared: Shared) -> None:
        self._port = port
        self._shared = shared
        self._server = HttpServer(self._handle, ServerLimits())
        events, replay = (f"tcp://127.0.0.1:{port + number}" for number in (100, 200))
        self._publisher = Publisher(PublisherConfig(events.replace("127.0.0.1", "*"), replay))
        self._events = (events, replay)
        self._cached: dict[bytes, int] = {}
        self._pages = {b"/health": {}, b"/version": {"version": "0.32.0"}, b"/v1/models": self._models()}
        self._pages[b"/kv_event_sources"] = {"0": self._source()}

    async def start(self) -> None:
        await self._publisher.start()
        await self._server.start("127.0.0.1", self._port)

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.request.path
        if path in _GENERATE:
            self._generate(exchange)
        elif path == b"/bench/work":
            self._shared.work = msgspec.json.decode(exchange.request.body, type=Work)
            exchange.answer(json_answer(200, {}))
        elif path == b"/bench/backlog":
            exchange.answer(json_answer(200, self._shared.num_pending))
        elif path == b"/metrics":
            exchange.answer(Answer(200, _METRICS, ((b"content-type", b"text/plain"),)))
        elif path in self._pages:
            exchange.answer(json_answer(200, self._pages[path]))
        else:
            exchange.answer(json_answer(404, {}))

    def _generate(self, exchange: Exchange) -> None:
        body = exchange.request.body
        num_cached = self._remember(body)
        usage = b'{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101'
        if num_cached is not None:
            usage += b',"prompt_tokens_details":{"cached_tokens":%d}' % num_cached
        usage += b"}"
        if b'"stream":true' not in body and b'"stream": true' not in body:
            exchange.answer(Answer(200, _JSON % usage, (JSON_TYPE,)))
            return
        exchange.begin(200, _SSE, None)
        self._stream(exchange, self._shared.work.chunks, usage)

    def _stream(self, exchange: Exchange, num_left: int, usage: bytes) -> None:
        """The next event, then the others: at once, each in a write of its own, or one after the other."""
        gap_s = self._shared.work.gap_s
        while num_left and not exchange.over:
            exchange.write(_EVENT)
            num_left -= 1
            if gap_s:
                asyncio.get_running_loop().call_later(gap_s, self._stream, exchange, num_left, usage)
                return
        exchange.write(b'data: {"id":"chatcmpl-1","choices":[],"usage":%b}\n\n' % usage)
        exchange.write(_DONE)
        exchange.end()

    def _remember(self, body: bytes) -> int | None:
        """Tokens that are cached of a prompt; None for one that is tokenized now."""
        messages = msgspec.json.decode(body, type=_Body).messages
        key = hashlib.blake2b(messages, digest_size=16).digest()
        num_cached = self._cached.get(key)
        if num_cached is None and key not in self._cached:
            self._cached[key] = 0
            self._shared.num_pending += 1
            loop = asyncio.get_running_loop()
            task = loop.run_in_executor(
                self._shared.threads, _tokens, self._shared.tokenizer, bytes(messages)
            )
            task.add_done_callback(lambda done: self._publish(key, done.result()))
            return None
        return num_cached

    def _publish(self, key: bytes, tokens: list[int]) -> None:
        num_blocks = len(tokens) // BLOCK
        digests = [
            hashlib.blake2b(key + b"%d" % place, digest_size=8).digest() for place in range(num_blocks)
        ]
        hashes = [event_hash(digest) for digest in digests]
        kept = tokens[: num_blocks * BLOCK]
        event = BlockStored(hashes, None, kept, BLOCK, None, MEDIUM_DEVICE, None, [None] * num_blocks, 0)
        self._publisher.publish([event], time.time())
        self._cached[key] = (len(tokens) - 1) // BLOCK * BLOCK
        self._shared.num_pending -= 1

    def _models(self) -> dict[str, object]:
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": self._shared.model}
        return {"object": "list", "data": [card | {"parent": None, "max_model_len": CONTEXT}]}

    def _source(self) -> dict[str, object]:
        events, replay = self._events
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": events,
            "replay_endpoint": replay,
        }


class _Body(msgspec.Struct):
    messages: msgspec.Raw


_METRICS = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000000",enable_prefix_caching="True",'
    b'prefix_caching_hash_algo="sha256"} 1.0\n'
    b'vllm:num_requests_running{engine="0",model_name="bench"} 0.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.1\n'
)
_JSON = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1760000000,"model":"bench",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":" token"},'
    b'"logprobs":null,"finish_reason":"length"}],"usage":%b}'
)


def _tokens(tokenizer: Tokenizer, messages: bytes) -> list[int]:
    found = tokenizer.chat({"messages": msgspec.json.decode(messages)})
    assert isinstance(found, list), f"the benchmark's own prompts can be tokenized: {found}"
    return found


async def _serve(ports: Sequence[int], model: str) -> None:
    shared = Shared(load_tokenizer(model), model, ThreadPoolExecutor(1), Work())
    for port in ports:
        await BareEngine(port, shared).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("ports", type=int, nargs="+")
    options = parser.parse_args()
    uvloop.run(_serve(options.ports, options.model))


if __name__ == "__main__":
    main()
