"""The client of calibration: what it reads of an engine, when tokens came, and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from anbar.apps.calibrate.client import EngineClient
from anbar.apps.calibrate.metrics_page import parse_counters
from anbar.apps.calibrate.target import Ask
from anbar.core.errors import ConfigError, MeasureError, WireError
from tests.unit.calibrate.scripted_vllm import ScriptedVllm, event, scripted_vllm, usage


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedVllm]:
    async with scripted_vllm() as running:
        yield running


@pytest.fixture
async def client(engine: ScriptedVllm) -> AsyncIterator[EngineClient]:
    found = EngineClient(engine.url, "secret")
    found.model = "m"
    yield found
    await found.aclose()


async def test_facts(engine: ScriptedVllm, client: EngineClient) -> None:
    """Model, release, limits and cache come from its pages, asked with the key."""
    facts = await client.facts()
    assert (facts.model, facts.root, facts.vllm) == ("m", "/models/m", "0.32.0")
    assert (facts.max_model_len, facts.block_size, facts.num_blocks) == (4096, 32, 700)
    assert facts.has_offload
    assert all(b"authorization: Bearer secret" in head for head in engine.heads)


async def test_counters(client: EngineClient) -> None:
    """Totals of all ranks; those of other sources are not counted as loads."""
    counters = await client.counters()
    assert counters.external_tokens == 64
    assert (counters.load_bytes, counters.load_s) == (3e6, 0.25)
    assert (counters.store_bytes, counters.store_s) == (4e6, 0.5)


def test_counters_of_several_ranks() -> None:
    """Data-parallel ranks add up; a page without vLLM's metrics is refused."""
    page = b'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 3.0\n'
    assert parse_counters(page).num_running == 5
    assert not parse_counters(page).has_offload
    with pytest.raises(WireError, match="none of vLLM's metrics"):
        parse_counters(b"python_gc_objects 1.0\n")


async def test_when_tokens_came(engine: ScriptedVllm, client: EngineClient) -> None:
    """Bursts are told apart, an event may lie across two reads, and one may bring two tokens."""
    first = event(choices=[{"text": "a"}], usage=usage(40, 1, 32))
    both = event(choices=[{"text": "bc"}], usage=usage(40, 3, 32))
    last = event(choices=[], usage=usage(40, 3, 32)) + b"data: [DONE]\n\n"
    engine.bursts = [first, both[:20], both[20:], last]
    (timeline,) = await client.run([Ask((1, 2, 3), 3)])
    one, two, three = timeline.token_s
    assert timeline.sent_s < one < two == three
    assert (timeline.num_prompt_tokens, timeline.num_cached) == (40, 32)
    sent = json.loads(engine.bodies[-1])
    assert (sent["prompt"], sent["max_tokens"], sent["ignore_eos"]) == ([1, 2, 3], 3, True)


async def test_delays(engine: ScriptedVllm, client: EngineClient) -> None:
    """A request of a batch is sent when its delay is over, and answers come in the order of asking."""
    engine.bursts = None
    begin_s = asyncio.get_running_loop().time()
    late, early = await client.run([Ask((1, 2), 1, delay_s=0.05), Ask((3,), 1)])
    assert early.sent_s >= begin_s
    assert late.sent_s >= begin_s + 0.049
    assert (late.num_prompt_tokens, early.num_prompt_tokens) == (2, 1)


@pytest.mark.parametrize(
    ("bursts", "message"),
    [
        ([event(usage=usage(4, 1, None))], "start it with --enable-prompt-tokens-details"),
        ([], "ended early, 0 of 1 tokens"),
        ([event(error={"message": "out of memory"})], "out of memory"),
        ([b"data: {nonsense}\n\n"], "cannot be understood"),
    ],
)
async def test_answers_that_are_no_measurement(
    engine: ScriptedVllm, client: EngineClient, bursts: list[bytes], message: str
) -> None:
    """Nothing is measured from an answer that is not what was asked for; the message says what came."""
    engine.bursts = bursts
    with pytest.raises(MeasureError, match=message):
        await client.run([Ask((1,), 1), Ask((2,), 1)])


async def test_refused_completion(engine: ScriptedVllm, client: EngineClient) -> None:
    """An engine's own error is shown with its status."""
    engine.pages["/v1/completions"] = (400, b'{"error":{"message":"too long"}}')
    with pytest.raises(MeasureError, match=r"answers 400: .*too long"):
        await client.run([Ask((1,), 1)])


@pytest.mark.parametrize(
    ("path", "page", "message"),
    [
        ("/v1/models", (401, b"{}"), "--api-key-env"),
        ("/v1/models", (404, b"{}"), "is it a vLLM engine"),
        ("/v1/models", (200, b'{"data":[]}'), "serves no model"),
        ("/version", (200, b"nginx"), "is not a vLLM engine"),
        ("/metrics", (200, b"vllm:num_requests_running 0.0\n"), "block size"),
        ("/metrics", (200, b"up 1\n"), "is not a vLLM engine"),
    ],
)
async def test_what_is_no_engine(
    engine: ScriptedVllm, client: EngineClient, path: str, page: tuple[int, bytes], message: str
) -> None:
    """Whatever else listens there is refused with what was wrong with it."""
    engine.pages[path] = page
    with pytest.raises(MeasureError, match=message):
        await client.facts()


async def test_nobody_listens() -> None:
    """An engine that is not there is said to be not there; a wrong address is a wrong option."""
    client = EngineClient("http://127.0.0.1:9")
    with pytest.raises(MeasureError, match="no connection to the engine"):
        await client.facts()
    with pytest.raises(ConfigError, match="ftp"):
        EngineClient("ftp://x")


async def test_clearing_the_device(engine: ScriptedVllm, client: EngineClient) -> None:
    """Only an engine that says it did has cleared its device; most have no such page."""
    assert not await client.clear_device()
    engine.pages["/reset_prefix_cache"] = (200, b'{"success":false}')
    assert not await client.clear_device()
    engine.pages["/reset_prefix_cache"] = (200, b'{"success":true}')
    assert await client.clear_device()


async def test_tokenizing(engine: ScriptedVllm, client: EngineClient) -> None:
    """Ids, count and time of a text; an answer of another form is refused."""
    assert await client.tokenize("a b c") == [5, 6, 7]
    seconds, count = await client.tokenize_s("a b c")
    assert seconds > 0
    assert count == 3
    for page in ((200, b"[]"), (404, b"no")):
        engine.pages["/tokenize"] = page
        with pytest.raises(MeasureError, match="/tokenize"):
            await client.tokenize("a")
