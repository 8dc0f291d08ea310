"""An answer on its way: events that pass in their frames, and those that are looked at."""

import asyncio
from typing import Any, cast

import httptools
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.http.message import Request
from anbar.adapters.http.server import Connection, Exchange
from anbar.adapters.http.transcript import Transcript
from anbar.adapters.http.usage import Usage, find_usage
from anbar.adapters.http.usage_event import UsageFilter
from anbar.apps.clock import SystemClock
from anbar.apps.router.relay import Relay
from anbar.core.errors import UpstreamBroken

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, **more}
    return b"data: " + msgspec.json.encode({"id": "c", "choices": [choice]}) + b"\n\n"


class Client:
    """The client's end of a connection."""

    def __init__(self, version: str) -> None:
        self.http_1_0 = version == "1.0"
        self.paused = False
        self.sent = b""
        self.is_over = False

    def must_close(self, wished: bool) -> bool:
        return wished

    def send(self, data: bytes) -> None:
        self.sent += data

    def finished(self, closing: bool) -> None:
        self.is_over = True

    @property
    def body(self) -> bytes:
        """What a client library makes of it."""
        parts: list[bytes] = []

        class Reader:
            def on_body(self, data: bytes) -> None:
                parts.append(data)

        httptools.HttpResponseParser(Reader()).feed_data(self.sent)
        return b"".join(parts)


def begun(client: Client, sieve: UsageFilter | None = None) -> Relay:
    exchange = Exchange(cast("Connection", client), Request(b"POST", b"/", (), b""), closing=False)
    exchange.begin(200, b"content-type: text/event-stream\r\n", None)
    relay = Relay(exchange, SystemClock(), True, sieve)
    relay.transcript = Transcript()
    return relay


def give(relay: Relay, event: bytes, cut: int) -> int:
    """An event as a chunk of its own, or in two reads; how many of them the client gets something of."""
    if not cut:
        relay.chunk(event, b"%x\r\n%b\r\n" % (len(event), event))
        return 1
    relay.body(event[:cut])
    relay.body(event[cut:])
    return 2


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@given(st.lists(st.text(), min_size=1, max_size=9), st.booleans(), st.data())
def test_stream_is_the_same_whichever_way_its_events_pass(
    version: str, texts: list[str], asked: bool, data: st.DataObject
) -> None:
    """Some events come whole, some cut. The client gets every byte but the usage event that the router asked
    for; the text, the usage and the number of chunks are what they are."""

    async def run() -> None:
        client = Client(version)
        relay = begun(client, UsageFilter() if asked else None)
        num_reads = 0
        for text in texts:
            one = event(text)
            # A first piece of so much shows that it is no usage: nothing is held back.
            cut = data.draw(st.sampled_from([0, 0, one.index(b'"index"') + 5]))
            num_reads += give(relay, one, cut)
        assert relay.transcript is not None
        assert relay.transcript.text() == "".join(texts)
        assert relay.pace.told().num_chunks == num_reads
        give(relay, USAGE, 0)
        give(relay, DONE, 0)
        relay.ended()
        expected = b"".join(map(event, texts)) + (b"" if asked else USAGE) + DONE
        assert client.body == expected
        assert client.is_over
        assert find_usage(relay.tail.bytes()) == Usage(7, 3, None)

    asyncio.run(run())


async def test_stream_that_breaks_after_an_event_in_its_frame() -> None:
    """Events pass without a look; then the engine is lost in a stream that nobody can go on with. The client
    reads the error as an event of its own."""
    client = Client("1.1")
    relay = begun(client)
    relay.transcript = None
    for text in ("a", "b", "c"):
        give(relay, event(text), 0)
    relay.broke(UpstreamBroken("it is gone"))
    events = client.body.split(b"\n\n")
    assert [part + b"\n\n" for part in events[:3]] == [event("a"), event("b"), event("c")]
    assert msgspec.json.decode(events[3].removeprefix(b"data: "))["error"]["type"] == "upstream_error"
    assert events[4:] == [b""]


async def test_usage_of_a_cut_stream_is_not_taken_from_its_beginning() -> None:
    """An engine that tells a usage in its first event, and then text alone: that is not what was used."""
    relay = begun(Client("1.1"))
    first = event("").replace(b'"choices"', b'"usage":{"prompt_tokens":7,"completion_tokens":0},"choices"')
    for one in (first, event("a"), event("b"), event("c"), event("d", finish_reason="stop"), DONE):
        give(relay, one, 0)
    assert find_usage(relay.tail.bytes()) is None
